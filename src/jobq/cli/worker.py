"""`jq-worker`: runs the jobs of an application's queues until it is asked to stop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import yaml

from jobq.api.queue import Queue
from jobq.api.worker import Worker
from jobq.cli.app import chosen, load
from jobq.cli.options import DURATION, FAILED, USAGE, fail
from jobq.console import logs
from jobq.console.discreet import Discreet
from jobq.core.version import __version__
from jobq.errors import ConfigError, InvalidJob, JobqError

log = logging.getLogger("jobq.worker")

_LISTS = ("app", "queues")
_Source = click.core.ParameterSource

_HELP = """Run the jobs of an application's queues.

The app is imported from the current directory or the installed packages; MODULE:QUEUE may be written without --app. On
SIGTERM or Ctrl-C the worker claims no more jobs, lets running ones finish for --drain, and releases the rest at no cost to
their retries. A second signal releases them at once. Exit code 0 after a stop that was asked for.

\b
Options can come from the environment (JQ_APP, JQ_CONCURRENCY, …) or from --config. The command line wins over the
environment, the environment over the file. JQ_URL is the store of queues for which the app names none.

\b
Examples:
  jq-worker shop.jobs:billing
  jq-worker --app shop.jobs:billing,emails --concurrency 20
  jq-worker --app shop.jobs --queues emails,billing      # all queues of the module; these two, in this order
  JQ_URL=valkey://localhost:6379 jq-worker --app shop.jobs:billing --drain 5m
"""


def _configured(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Let a YAML file give the defaults of the other options."""
    if path is None:
        return
    try:
        values = yaml.safe_load(Path(path).read_text()) or {}
    except OSError as e:
        raise click.BadParameter(f"cannot read {path}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise click.BadParameter(f"{path} is no YAML: {' '.join(str(e).split())}") from e
    if not isinstance(values, dict):
        raise click.BadParameter(f"{path} must have one option per line, e.g. concurrency: 20")
    options_of = [p for p in ctx.command.params if isinstance(p, click.Option)]
    known = {p.name for p in options_of if p.name not in ("config", "help", "version")}
    options = {str(key).replace("-", "_"): value for key, value in values.items()}
    if unknown := [key for key in options if key not in known]:
        raise click.BadParameter(
            f"{path} has {unknown[0]!r}, which is no option of jq-worker: {', '.join(sorted(filter(None, known)))}"
        )
    for key in _LISTS:
        if isinstance(options.get(key), str):
            options[key] = [options[key]]
    ctx.default_map = options


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
    help="A YAML file with these options.",
)
@click.argument("apps", metavar="[MODULE:QUEUE]...", nargs=-1)
@click.option(
    "--app",
    "app",
    metavar="MODULE:QUEUE",
    multiple=True,
    help="The queue to work; QUEUE,QUEUE2 for several, MODULE for all in it. May be repeated.",
)
@click.option(
    "--queues",
    metavar="NAMES",
    multiple=True,
    help="Of the app's queues only those with these names, e.g. billing,emails.",
)
# JQ_URL is not this option: it is where queues are that name no store, and an app that names one means it.
@click.option(
    "--url",
    metavar="URL",
    allow_from_autoenv=False,
    help="Work on this store, whatever the app says.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Jobs that run at a time.",
)
@click.option(
    "--lease",
    type=DURATION,
    metavar="TIME",
    default="15s",
    show_default=True,
    help="How long a dead worker's jobs stay with it.",
)
@click.option(
    "--drain",
    type=DURATION,
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long running jobs may take to finish on a stop.",
)
@click.option(
    "--wait",
    type=DURATION,
    metavar="TIME",
    help="How long to wait for a store that is away at the start. Default: for ever",
)
@click.option(
    "--worker-id",
    "--name",
    "worker_id",
    metavar="NAME",
    help="The worker's name, unique among the workers of a store. Default: host and process id",
)
@click.option(
    "--log-level",
    type=click.Choice(list(logs.LEVELS)),
    default="info",
    show_default=True,
    help="What is logged to stderr: each job's end at info, its start at debug, every exchange with the store at trace.",
)
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default="text",
    show_default=True,
    help="Lines for people, or a JSON object per line. An app that configures logging itself keeps its own format.",
)
@click.version_option(__version__, prog_name="jq-worker")
@click.pass_context
def main(
    ctx: click.Context,
    apps: tuple[str, ...],
    app: tuple[str, ...],
    queues: tuple[str, ...],
    url: str | None,
    concurrency: int,
    lease: float,
    drain: float,
    wait: float | None,
    worker_id: str | None,
    log_level: str,
    log_format: logs.LogFormat,
) -> None:
    if url is not None:
        os.environ["JQ_URL"] = url  # for queues that leave the store open, before they are made
    names = [name for part in queues for name in part.split(",") if name]
    try:
        working = chosen(load(_named(ctx, apps, app)), names)
        # After the import: an application that configures logging has done so by now.
        logs.configure(
            log_level,
            log_format,
            chosen=ctx.get_parameter_source("log_level") is not _Source.DEFAULT,
        )
        for queue in working:
            queue._context.connection.move(url or queue.url)
        _check_tasks(working)
        _run(
            _work(
                working,
                concurrency=concurrency,
                lease=lease,
                drain=drain,
                wait=wait,
                name=worker_id,
            )
        )
    except (ConfigError, InvalidJob) as e:
        fail(str(e), USAGE, e)
    except JobqError as e:
        fail(str(e), FAILED, e)


def _named(ctx: click.Context, apps: tuple[str, ...], app: tuple[str, ...]) -> tuple[str, ...]:
    """What the arguments and --app name together. What is typed wins over the environment and the file."""
    typed = ctx.get_parameter_source("app") is _Source.COMMANDLINE
    found = (*apps, *(app if typed or not apps else ()))
    if not found:
        raise click.UsageError(
            "Which queue? Name one as MODULE:QUEUE, e.g. jq-worker shop.jobs:billing", ctx
        )
    return found


def _check_tasks(queues: list[Queue]) -> None:
    """A worker without tasks would claim jobs and fail every one of them."""
    if any(queue.tasks for queue in queues):
        return
    names = ", ".join(queue.name for queue in queues)
    raise ConfigError(
        f"no tasks in {names}: is the module that defines them imported? Name it, or import it in the app"
    )


async def _work(queues: list[Queue], *, wait: float | None, **options: Any) -> None:
    """Until it is asked to stop."""
    for queue in queues:
        if queue.tasks:
            log.info("queue %s has the tasks %s", queue.name, ", ".join(sorted(queue.tasks)))
        else:
            log.warning(
                "queue %s has no tasks: the module that defines them is not imported", queue.name
            )
    worker = Worker(*queues, **options)
    worker._ends_process = True
    await worker.run(wait=wait)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """asyncio.run, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    else:
        run = uvloop.run
    run(
        work
    )  # not in the `except`: every error of a handler would be shown as raised while that one was handled


if __name__ == "__main__":
    main()
