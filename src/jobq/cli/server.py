"""`jq-server`: a queue service for several tenants and languages, over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobq.cli.app import run_in_loop
from jobq.cli.options import FAILED, USAGE, fail
from jobq.console import logs
from jobq.console.safe_errors import Discreet
from jobq.core.version import __version__
from jobq.errors import ConfigError, JobqError

if TYPE_CHECKING:
    from jobq.console.probes import Route
    from jobq.server.host import Host
    from jobq.server.plan import WebPlan

_HELP = """Serve a queue over gRPC, for workers, producers and operators.

Without a configuration, jobs are in the file jobq.db, and only programs on this machine can
connect. --config names a YAML file. Environment variables override the file: JQ_GRPC_PORT is
grpc.port. Flags override both. Passwords and secrets come from the environment or from files.

On SIGTERM or Ctrl-C the server accepts no new calls and lets running calls end, up to
shutdown_grace_period. A second signal stops it at once. Workers reconnect to another server, and
their jobs go on.

\b
Examples:
  jq-server                                              # SQLite file, this machine only
  jq-server --url postgresql://jq@db.example/jobs        # password in PGPASSWORD or a passfile
  jq-server --config /etc/jobq/server.yaml --dry-run     # check everything, then exit
  JQ_URL=valkey://localhost:6379 jq-server --grpc-port 50052
"""


@click.command(
    "jq-server",
    cls=Discreet,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--config",
    metavar="FILE",
    envvar="JQ_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file with the configuration.",
)
@click.option(
    "--url",
    metavar="URL",
    help="Store that keeps the jobs. Default: JQ_URL, then store.url and db of the configuration, "
    "then sqlite:///jobq.db.",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Port of gRPC. 0 chooses a free one. Default: 50051.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Port of /metrics for Prometheus. Default: 9090.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Port of /healthz and /readyz. Default: 8080.",
)
@click.option(
    "--web/--no-web",
    default=None,
    help="Serve the dashboard under /ui on the port of /healthz. Default: no.",
)
@click.option(
    "--log-level",
    type=click.Choice(["trace", "debug", "info", "warn", "warning", "error"]),
    help="Log level. Default: info.",
)
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    help="text, or one JSON object per line. Default: text.",
)
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Let everybody who can reach the server do everything, also from other machines.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the configuration, the store, Kafka and the certificates, then exit.",
)
@click.version_option(__version__, prog_name="jq-server")
def main(
    config: Path | None,
    url: str | None,
    grpc_port: int | None,
    metrics_port: int | None,
    health_port: int | None,
    web: bool | None,
    log_level: str | None,
    log_format: str | None,
    insecure: bool | None,
    dry_run: bool,
) -> None:
    """Serve a queue over gRPC."""
    flags = {
        "grpc.port": grpc_port,
        "metrics.port": metrics_port,
        "health.port": health_port,
        "web.enabled": web,
        "logging.level": log_level,
        "logging.format": log_format,
        "insecure": insecure,
    }
    try:
        _main(config, url, flags, dry_run=dry_run)
    except ConfigError as e:
        fail(str(e), USAGE, e)
    except JobqError as e:
        fail(str(e), FAILED, e)


def _main(config: Path | None, url: str | None, flags: dict[str, Any], *, dry_run: bool) -> None:
    _check_installed()
    from jobq.server.checkup import checkup
    from jobq.server.config import load
    from jobq.server.plan import plan
    from jobq.server.run import run

    loaded = load(config, os.environ, flags)
    planned = plan(loaded, os.environ, url=url)
    if planned.web is not None:
        import jobq.web.serving as _  # noqa: F401 - ConfigError says what is not installed
    logs.configure(planned.log_level, planned.log_format, whole=True)  # type: ignore[arg-type]
    if dry_run:
        good = True
        for finding in asyncio.run(checkup(planned)):
            click.echo(f"{'ok     ' if finding.good else 'PROBLEM'} {finding.what}")
            good = good and finding.good
        for warning in planned.warnings:
            click.echo(f"warning {warning}")
        raise SystemExit(0 if good else FAILED)
    for warning in planned.warnings:
        logging.getLogger("jobq.server").warning("%s", warning)
    run_in_loop(run(planned, web_port=_web_port))


@contextlib.asynccontextmanager
async def _web_port(
    plan: WebPlan, host: Host, routes: Mapping[str, Route], address: tuple[str, int]
) -> AsyncIterator[int]:
    """The dashboard of a server, for the signed-in person: with the same tokens, tenants and
    quotas as gRPC. A server that checks no tokens serves its dashboard to this machine only.
    """
    from jobq.server.context import NoTokens
    from jobq.web.serving import web_port
    from jobq.web.site import Dashboard

    context = host.context
    authenticator = context.authenticator
    dashboard = Dashboard(
        context.store,
        sign_in=None if isinstance(authenticator, NoTokens) else authenticator,
        read_only=plan.read_only,
        hide_payloads=plan.hide_payloads,
        secret=plan.secret,
        tenants=context.settings.tenants,
        guard=context.guard,
    )
    host.on_stop.append(dashboard.end_streams)
    async with web_port(dashboard, routes, address) as number:
        yield number


def _check_installed() -> None:
    for needed in ("grpc", "grpc_health", "grpc_reflection", "jwt", "cryptography"):
        if find_spec(needed) is None:
            raise ConfigError(f"jq-server needs {needed}: pip install 'jobq[server]'")


if __name__ == "__main__":
    main()
