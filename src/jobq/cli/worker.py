"""`jq-worker`: run the jobs of an application's queues until the process is asked to stop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from jobq.api.command import allow_commands
from jobq.api.queue import Queue
from jobq.api.worker import Worker
from jobq.cli.address import Address, overridden, server_options, use_token_file
from jobq.cli.app import chosen, load, load_function, parse_weights, run_in_loop
from jobq.cli.options import DURATION, FAILED, USAGE, fail
from jobq.cli.probes import ProbeOptions, check_prometheus, probe_options, worker_probes
from jobq.cli.supervise import Link, check_shared, supervise, supervision_options
from jobq.console import logs
from jobq.console.safe_errors import Discreet
from jobq.console.yaml_file import read_yaml
from jobq.core.version import __version__
from jobq.errors import ConfigError, InvalidJob, JobqError
from jobq.executors import sandbox
from jobq.logs import install as install_job_filter
from jobq.supervisor.child import Supervised

# Options of jq-worker about where handlers run.

_OPTIONS = (
    click.option(
        "--grace",
        type=DURATION,
        metavar="TIME",
        default="5s",
        show_default=True,
        help="How long a job may take to stop after its timeout or a cancel, before its process is "
        "killed. A task may have its own.",
    ),
    click.option(
        "--pool",
        type=click.IntRange(min=1),
        metavar="N",
        help='Child processes for tasks with executor="process". Default: one per core.',
    ),
    click.option(
        "--pool-max-jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Replace a child process after N jobs. 1: a new process for each job.",
    ),
    click.option(
        "--pool-max-memory",
        metavar="SIZE",
        help="Replace a child process that uses more memory after a job, e.g. 512M.",
    ),
    click.option(
        "--allow-command",
        metavar="PROGRAM",
        multiple=True,
        help="Allow jobs of the task jobq.command to run this program with arguments of their own. "
        "Repeat for several programs. Default: none.",
    ),
)


def executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


# `jq-worker --check-sandbox`: which permissions this machine can enforce.


def _print_features(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    found = sandbox.features()
    wide = max(len(feature.permission) for feature in found)
    click.echo(f"{sandbox.machine()}\n")
    for feature in found:
        answer = "no " if feature.missing else "yes"
        click.echo(f"{answer}  {feature.permission:<{wide}}  needs {feature.needs}")
        if feature.missing:
            click.echo(f"     {'':<{wide}}  {feature.missing}")
    if any(feature.missing for feature in found):
        click.echo(
            "\nA worker refuses to start a task whose permissions it cannot enforce. With "
            '`enforce="best-effort"` it starts the task and logs what is missing.'
        )
        ctx.exit(FAILED)
    click.echo("\nThis machine enforces all permissions.")
    ctx.exit()


check_sandbox_option = click.option(
    "--check-sandbox",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=_print_features,
    help="Show which permissions of tasks this machine can enforce, and exit. "
    "The exit code is 1 if something is missing.",
)
"""An option that needs no app: it prints and exits before the others are read."""


log = logging.getLogger("jobq.worker")

_ACTIONS = ("config", "help", "version", "check_sandbox")
_LISTS = ("app", "queues", "modules", "middleware", "allow_command")
_Source = click.core.ParameterSource

_HELP = """Run the jobs of an application's queues.

jq-worker imports the app from the current directory or the installed packages. On SIGTERM or
Ctrl-C it stops claiming jobs, waits up to --drain for running jobs to finish, and releases the
rest, so that another worker runs them. A release does not use up a retry. A second signal
releases running jobs at once. The exit code is 0 after a requested stop.

--processes, --max-jobs, --max-memory and --reload start a supervisor, which runs one or more worker
processes named NAME-1, NAME-2, … and passes signals on to them.

Options can also be set in the environment (JQ_APP, JQ_CONCURRENCY, …) or in the file of --config.
The command line overrides the environment, and the environment overrides the file. JQ_SERVER_ADDR,
or else JQ_URL, is the store of queues for which the app names none.

\b
Examples:
  jq-worker shop.jobs:billing
  jq-worker --app shop.jobs:billing,emails --concurrency 20
  jq-worker --app shop                                   # all queues of the package shop
  jq-worker --app shop.jobs --queues emails,billing      # these two queues, in turns
  jq-worker --app shop --queues billing=3,emails         # billing is first three times as often
  jq-worker --app shop --lifespan shop.app:lifespan
  JQ_URL=valkey://localhost:6379 jq-worker --app shop.jobs:billing --drain 5m
  jq-worker shop.jobs:billing --server-addr queue.internal:50051 --token-file /run/secrets/token
  jq-worker shop.jobs:billing --processes auto --max-memory 1G
  jq-worker shop.jobs:billing --reload                   # restart when the code changes
"""


# The configuration file of a jq-server, as far as it concerns a worker.
#
# Server and workers of an installation may share one file. A worker takes what both have: logging,
# the lease and the grace time. The rest is the server's: a worker reaches the store through the
# server, and has ports of its own.

_SHARED_KEYS = {
    "logging.level": "log_level",
    "logging.format": "log_format",
    "scheduler.worker_heartbeat_timeout_s": "lease",
    "shutdown_grace_period": "drain",
}
"""Keys of the file, and the options of jq-worker that they set."""


def is_server_config(values: Mapping[Any, Any]) -> bool:
    """Whether a file is a server's: it has sections. Options of jq-worker have none."""
    return any(isinstance(value, dict) for value in values.values())


def worker_options(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What a server's file says about a worker, overridden by the variables of the server's keys. A
    wrong key is an error, as for the server."""
    from jobq.server import config

    try:
        loaded = config.load(path, environment)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return {
        option: _value(loaded.config, key)
        for key, option in _SHARED_KEYS.items()
        if key in loaded.given
    }


def _value(found: Any, key: str) -> Any:
    for part in key.split("."):
        found = getattr(found, part)
    return found


def _configured(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Read defaults of the other options from a YAML file."""
    if path is None:
        return
    try:
        values = read_yaml(path) or {}
    except ConfigError as e:
        raise click.BadParameter(str(e)) from e
    if not isinstance(values, dict):
        raise click.BadParameter(f"{path} must map options to values, e.g. concurrency: 20")
    options_of = [p for p in ctx.command.params if isinstance(p, click.Option)]
    known = {p.name for p in options_of if p.name not in _ACTIONS}
    if is_server_config(values):
        ctx.default_map = worker_options(Path(path), os.environ)
        return
    options = {str(key).replace("-", "_"): value for key, value in values.items()}
    if unknown := [key for key in options if key not in known]:
        raise click.BadParameter(
            f"{path} has an unknown option {unknown[0]!r}. "
            f"Options of jq-worker: {', '.join(sorted(filter(None, known)))}. The file of a "
            "jq-server has sections such as grpc: and db:"
        )
    for key in _LISTS:
        if isinstance(options.get(key), str):
            options[key] = [options[key]]
    ctx.default_map = overridden(options, os.environ)


@click.command(
    "jq-worker",
    cls=Discreet,
    help=_HELP,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "auto_envvar_prefix": "JQ",
    },
)
@click.option(
    "--config",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_configured,
    help="YAML file with any of these options, e.g. `concurrency: 20`; or the configuration of "
    "jq-server, of which only the logging, the lease and the grace time apply.",
)
@click.argument("apps", metavar="[MODULE:QUEUE]...", nargs=-1)
@click.option(
    "--app",
    "app",
    metavar="MODULE:QUEUE",
    multiple=True,
    help="Queue to work on; MODULE:QUEUE,QUEUE2 for several, MODULE for all queues in it. Of a "
    "package, all modules are imported. Repeat for several modules. May be written without --app.",
)
@click.option(
    "--queues",
    metavar="NAMES",
    multiple=True,
    help="Only these queues of the app, e.g. billing,emails. Default: all. With weights, as in "
    "billing=3,emails, billing is first three times as often when slots are free.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Serve the queues in their order: a queue gets a slot only if no job of those before it "
    "can start. Default: they take turns.",
)
@click.option(
    "--modules",
    metavar="NAMES",
    multiple=True,
    help="Modules to import, e.g. shop.jobs,shop.reports, instead of all modules of a package.",
)
@click.option(
    "--lifespan",
    metavar="MODULE:FUNCTION",
    help="Function that returns a context manager, which is open while the worker works.",
)
@click.option(
    "--middleware",
    metavar="MODULE:FUNCTION",
    multiple=True,
    help="Async function to call around each run. Repeat for several; the first is outermost.",
)
# JQ_URL does not set this option: it is the store of queues that name none, and must not override
# an app that does.
@click.option(
    "--url",
    metavar="URL",
    allow_from_autoenv=False,
    help="Store to work on, instead of the one that the app names.",
)
@server_options
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum jobs that run at once, in each process.",
)
@click.option(
    "--lease",
    type=DURATION,
    metavar="TIME",
    default="15s",
    show_default=True,
    help="How long until another worker may take over the jobs of a dead worker.",
)
@click.option(
    "--drain",
    type=DURATION,
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long to wait for running jobs on shutdown, before they are released.",
)
@click.option(
    "--wait",
    type=DURATION,
    metavar="TIME",
    help="How long to wait at startup for a store that is unavailable. Default: forever.",
)
@click.option(
    "--worker-id",
    "--name",
    "worker_id",
    metavar="NAME",
    help="Name of the worker, unique in its store. Default: host, process id and a random suffix. "
    "Under a supervisor, the workers are named NAME-1, NAME-2, ….",
)
@executor_options
@supervision_options
@probe_options
@click.option(
    "--log-level",
    type=click.Choice(list(logs.LEVELS)),
    default="info",
    show_default=True,
    help="Log level. info logs the end of each job, debug also its start, trace also every call to "
    "the store.",
)
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default="text",
    show_default=True,
    help="text, or one JSON object per line. An app that configures logging keeps its own format.",
)
@check_sandbox_option
@click.version_option(__version__, prog_name="jq-worker")
@click.pass_context
def main(
    ctx: click.Context,
    apps: tuple[str, ...],
    app: tuple[str, ...],
    queues: tuple[str, ...],
    strict: bool,
    modules: tuple[str, ...],
    lifespan: str | None,
    middleware: tuple[str, ...],
    url: str | None,
    server_addr: str | None,
    token_file: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    concurrency: int,
    lease: float,
    drain: float,
    wait: float | None,
    worker_id: str | None,
    processes: int | None,
    max_jobs: int | None,
    max_memory: int | None,
    reload: bool,
    metrics_port: int | None,
    health_port: int | None,
    probe_host: str,
    grace: float,
    pool: int | None,
    pool_max_jobs: int | None,
    pool_max_memory: str | None,
    allow_command: tuple[str, ...],
    log_level: str,
    log_format: logs.LogFormat,
) -> None:
    supervised = Supervised.from_environment()
    configure_logs = partial(
        logs.configure,
        log_level,
        log_format,
        chosen=ctx.get_parameter_source("log_level") is not _Source.DEFAULT,
    )
    specs = _specs(ctx, apps, app)
    try:
        use_token_file(token_file)
        url = _given_store(Address(url, server_addr, tls_ca, tls_cert, tls_key))
        served = (url or os.environ.get("JQ_URL", "")).startswith(("grpc://", "grpcs://"))
        probes = ProbeOptions.of(metrics_port, health_port, probe_host, server=served)
        if supervised is None and (processes or max_jobs or max_memory or reload):
            configure_logs()
            ctx.exit(
                supervise(
                    processes=processes or 1,
                    name=worker_id,
                    drain_s=drain,
                    reload=reload,
                    probes=probes,
                )
            )
        names, weights = parse_weights(queues)
        imported = [name for part in modules for name in part.split(",") if name]
        working = chosen(load(specs, imported), names)
        configure_logs()  # after the import: an app that configures logging has done so by now
        install_job_filter()
        for queue in working:
            queue._context.connection.move(url or queue.url)
            if allow_command:
                allow_commands(queue._context, allow_command)
        _check_tasks(working)
        if supervised is not None:
            check_shared(working)
        run_in_loop(
            _work(
                working,
                concurrency=concurrency,
                lease=lease,
                drain=drain,
                grace=grace,
                pool=pool,
                pool_max_jobs=pool_max_jobs,
                pool_max_memory=pool_max_memory,
                strict=strict,
                weights=weights or None,
                lifespan=None if lifespan is None else load_function(lifespan, "--lifespan"),
                middleware=[load_function(each, "--middleware") for each in middleware],
                wait=wait,
                # Under a supervisor, the ports are the supervisor's.
                probes=probes if supervised is None else ProbeOptions(None, None, probe_host),
                count=probes.metrics_port is not None,
                name=worker_id if supervised is None else supervised.name,
                link=None
                if supervised is None
                else partial(Link, supervised, max_jobs=max_jobs, max_memory=max_memory),
            )
        )
    except (ConfigError, InvalidJob) as e:
        fail(str(e), USAGE, e)
    except JobqError as e:
        fail(str(e), FAILED, e)


def _given_store(address: Address) -> str | None:
    """The store that the command line names, for all queues; None if it names none.

    JQ_URL, for queues that name no store, becomes that store, or else what the environment names.
    It is set before the app creates its queues, and child processes inherit it."""
    url = address.given()
    if (default := url or address.from_environment()) is not None:
        os.environ["JQ_URL"] = default
    return url


def _specs(ctx: click.Context, apps: tuple[str, ...], app: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments and --app together. The command line overrides the environment and the file."""
    typed = ctx.get_parameter_source("app") is _Source.COMMANDLINE
    found = (*apps, *(app if typed or not apps else ()))
    if not found:
        raise click.UsageError(
            "no queue: give one as MODULE:QUEUE, e.g. jq-worker shop.jobs:billing", ctx
        )
    return found


def _check_tasks(queues: list[Queue]) -> None:
    """Refuse to start without tasks: the worker would claim jobs only to postpone each of them."""
    if any(queue.tasks for queue in queues):
        return
    names = ", ".join(queue.name for queue in queues)
    raise ConfigError(
        f"no tasks in {names}: import the module that defines them in the app, "
        "or add that module to the command line"
    )


async def _work(
    queues: list[Queue],
    *,
    wait: float | None,
    probes: ProbeOptions,
    count: bool,
    middleware: list[Any],
    link: Callable[[Worker], Link] | None,
    **options: Any,
) -> None:
    """Run a worker until it is asked to stop. `link` connects it with its supervisor.

    `count`: whether it counts its runs for Prometheus."""
    for queue in queues:
        if queue.tasks:
            log.info("queue %s has the tasks %s", queue.name, ", ".join(sorted(queue.tasks)))
        else:
            log.warning(
                "queue %s has no tasks: is the module that defines them imported?", queue.name
            )
    counting = _counting() if count else {}
    layers = [*counting.pop("middleware", ()), *middleware]
    worker = Worker(*queues, middleware=layers, **counting, **options)
    worker._ends_process = True
    if link is not None:
        worker._supervision = link(worker)
    with worker_probes(probes, worker, queues):
        await worker.run(store_timeout=wait)


def _counting() -> dict[str, Any]:
    """The arguments of a worker that counts its runs for Prometheus."""
    check_prometheus()
    from jobq.prometheus import Metrics

    metrics = Metrics()
    return {"middleware": [metrics.run], "on_missed": metrics.missed}


if __name__ == "__main__":
    main()
