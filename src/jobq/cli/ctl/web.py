"""`jq-ctl web`: the dashboard of a store, in a browser."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from jobq.cli.options import Command, Ctl, on_store
from jobq.console import logs
from jobq.core.values.hosts import is_loopback
from jobq.engine.interrupts import signals_caught


@click.command(
    cls=Command,
    examples="""
    jq-ctl --url sqlite:///jobs.db web                  # http://127.0.0.1:8088, this machine only
    jq-ctl web --read-only --hide-payloads
    jq-ctl web --host 0.0.0.0 --tokens-file tokens.txt  # sign-in with a token of the file
    """,
)
@click.option(
    "--host", default="127.0.0.1", metavar="ADDRESS", help="Where to listen. Default: 127.0.0.1."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8088,
    metavar="PORT",
    help="Port. 0 chooses a free one. Default: 8088.",
)
@click.option(
    "--tokens-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="JQ_WEB_TOKENS_FILE",
    metavar="FILE",
    help="Tokens that people sign in with. One per line: TOKEN NAME SCOPES [TENANT]. "
    "SCOPES are read, produce, work, admin, joined by commas.",
)
@click.option("--read-only", is_flag=True, help="Refuse every action.")
@click.option(
    "--hide-payloads",
    is_flag=True,
    help="Hide arguments, results, progress, log lines and messages of errors.",
)
@on_store
async def web(
    ctl: Ctl,
    host: str,
    port: int,
    tokens_file: Path | None,
    read_only: bool,
    hide_payloads: bool,
) -> None:
    """Serve the dashboard of queues, jobs, flows and workers.

    Without --tokens-file it serves only this machine, and everybody on it may do everything.
    Events name you as the one who acted. Put a proxy with TLS in front to serve other machines.
    JQ_WEB_SECRET signs the cookies, if several processes serve one dashboard. Ctrl-C stops it."""
    from jobq.access.principal import SCOPES, Principal
    from jobq.web.serving import address_of, listening, served
    from jobq.web.site import Dashboard
    from jobq.web.tokens import TokenFile

    if tokens_file is None and not is_loopback(host):
        raise click.UsageError(
            f"--host {host} lets other machines do everything: give --tokens-file, so that people "
            "sign in"
        )
    tenant = click.get_current_context().meta.get("jobq.tenant")
    dashboard = Dashboard(
        ctl.backend.handle,
        sign_in=None if tokens_file is None else TokenFile(tokens_file),
        read_only=read_only,
        hide_payloads=hide_payloads,
        secret=os.environ.get("JQ_WEB_SECRET") or None,
        local=Principal(subject=ctl.backend.actor, tenant=tenant, scopes=SCOPES),
    )
    listener = listening(host, port)
    logs.configure("info", "text")
    stopping = asyncio.Event()

    def caught(number: signal.Signals) -> None:
        stopping.set()

    with signals_caught(caught, last=True):
        async with served(dashboard, listener):
            click.echo(f"dashboard of {ctl.backend.shown} at {address_of(listener, host)}/")
            await stopping.wait()
            await dashboard.aclose()
