"""`jq-relay`: the relay as a command."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import click

from jobq.console import logs
from jobq.console.safe_errors import Discreet, safe_message
from jobq.core.version import __version__
from jobq.errors import ConfigError, JobqError
from jobq.relay.relay import Relay
from jobq.relay.targets import TargetUnavailable, open_target
from jobq.stores import open_store


@click.command("jq-relay", cls=Discreet, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--url",
    envvar="JQ_URL",
    default="sqlite:///jobq.db",
    show_default=True,
    metavar="URL",
    help="Store whose events to ship.",
)
@click.option(
    "--to",
    "target",
    required=True,
    envvar="JQ_RELAY_TO",
    metavar="URL",
    help="Target: kafka://host:9092/topic or files:///folder.",
)
@click.option(
    "--name",
    default="relay",
    show_default=True,
    metavar="NAME",
    help="Name of the reader whose position the store keeps. Use one name per target.",
)
@click.option("--once", is_flag=True, help="Ship the events that are there now, then exit.")
@click.option(
    "--refused",
    default="jq-relay-refused.jsonl",
    show_default=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File for events that the target rejects for good, with the reason.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve Prometheus metrics on this port of 127.0.0.1; 0 chooses a free one. "
    "Default: no metrics.",
)
@click.option("--verbose", is_flag=True, help="Also log information, not only warnings.")
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default="text",
    show_default=True,
    help="Log to stderr as text, or as one JSON object per line.",
)
@click.version_option(__version__, prog_name="jq-relay")
def main(
    url: str,
    target: str,
    name: str,
    once: bool,
    refused: str,
    metrics_port: int | None,
    verbose: bool,
    log_format: logs.LogFormat,
) -> None:
    """Ship the event log of a store to Kafka or files.

    Run several for availability: each queue is shipped by one of them, and another takes over
    when that one stops."""
    logs.configure("info" if verbose else "warning", log_format)
    try:
        asyncio.run(_main(url, target, name, once, Path(refused), metrics_port))
    except JobqError as e:
        raise click.ClickException(safe_message(e)) from e


async def _main(
    url: str, target: str, name: str, once: bool, refused: Path, metrics_port: int | None
) -> None:
    async with open_store(url) as store:
        relay = Relay(store, open_target(target), name=name, rejected=refused)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, relay.stop)
        async with _metrics(relay, metrics_port):
            if once:
                await relay.target.open()
                shipped = await relay.drain()
                await relay.target.aclose()
                found = relay.status
                if problems := [
                    problem
                    for problem in (found.problem, *(queue.problem for queue in found.queues))
                    if problem
                ]:
                    raise TargetUnavailable(f"stopped after {shipped} events: {problems[0]}")
                click.echo(f"{shipped} events shipped to {relay.target.name}")
            else:
                await relay.run()


@contextlib.asynccontextmanager
async def _metrics(relay: Relay, port: int | None) -> AsyncIterator[None]:
    """Serve `relay.status` in Prometheus' text format, over a minimal HTTP server."""
    if port is None:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            body = relay.status.prometheus().encode()
            head = (
                "HTTP/1.1 200 OK",
                "Content-Type: text/plain; version=0.0.4",
                f"Content-Length: {len(body)}",
                "Connection: close",
            )
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, "127.0.0.1", port)
    except OSError as e:
        raise ConfigError(f"--metrics-port {port}: {e.strerror}") from e
    click.echo(
        f"metrics on http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics", err=True
    )
    async with server:
        yield
