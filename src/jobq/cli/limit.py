"""`jq-ctl limit …`: how many jobs may run or start, for a queue or one of its keys, changed while it runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.api.limits import QueueLimits
from jobq.cli import text
from jobq.cli.options import Ctl, noun, on_store
from jobq.cli.output import Column, details, table
from jobq.cli.text import parse_duration
from jobq.core.policies import Bucket, Rate
from jobq.errors import ConfigError

limit = noun("limit", "See and change the limits of queues and keys.")
key_option = click.option("--key", metavar="KEY", help="Of this key only (keyed queues).")
_BUCKET = re.compile(r"(\d+)\+(\d+(?:\.\d+)?)/s")
_WINDOW = re.compile(r"(\d+)/(.+)")

if TYPE_CHECKING:
    _Policy = click.ParamType[Rate | Bucket]
else:  # generic since click 8.2 only
    _Policy = click.ParamType


class RateParam(_Policy):
    """`100/1m`: so many starts per window. `10+0.5/s`: a bucket of ten, refilled with half a token a second."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Rate | Bucket:
        """The policy."""
        try:
            if bucket := _BUCKET.fullmatch(value):
                return Bucket(int(bucket[1]), refill=float(bucket[2]))
            if window := _WINDOW.fullmatch(value):
                return Rate(int(window[1]), per=parse_duration(window[2]))
        except (ConfigError, ValueError) as e:
            self.fail(str(e), param, ctx)
        self.fail(
            f"{value!r} is no rate: write 100/1m for a window, or 10+0.5/s for a bucket and its refill",
            param,
            ctx,
        )


RATE = RateParam()


@limit.command(examples="jq-ctl limit show billing\njq-ctl limit show -o json")
@click.argument("names", metavar="[QUEUE...]", nargs=-1)
@on_store
async def show(ctl: Ctl, names: tuple[str, ...]) -> None:
    """Show the limits in force, also those of single keys."""
    found = [
        (record.queue.queue, await _limits(ctl, record.queue.queue))
        for record in await ctl.backend.known(names)
    ]
    ctl.out.show([_document(name, limits) for name, limits in found], lambda: _shown(found))


@limit.command(
    "set",
    examples="""
    jq-ctl limit set billing --limit 20 --rate 100/1m
    jq-ctl limit set imports --key acme --key-limit 5
    jq-ctl limit set api --rate 10+0.5/s        # a bucket of 10 tokens, half a token a second
    """,
)
@click.argument("name", metavar="QUEUE")
@key_option
@click.option("--limit", "most", type=click.IntRange(min=1), help="Jobs that run at a time.")
@click.option("--rate", type=RATE, metavar="RATE", help="Starts: 100/1m, or a bucket 10+0.5/s.")
@click.option("--key-limit", type=click.IntRange(min=1), help="Jobs of one key that run at a time.")
@click.option("--key-rate", type=RATE, metavar="RATE", help="Starts per key.")
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1),
    help="Jobs that wait to start. Beyond it, new ones are refused.",
)
@on_store
async def set_(
    ctl: Ctl,
    name: str,
    key: str | None,
    most: int | None,
    rate: Rate | Bucket | None,
    key_limit: int | None,
    key_rate: Rate | Bucket | None,
    max_waiting: int | None,
) -> None:
    """Change limits now, for all workers. What is not named stays. It holds until a higher limits_version is declared."""
    given = {
        "limit": most,
        "rate": rate,
        "key_limit": key_limit,
        "key_rate": key_rate,
        "max_waiting": max_waiting,
    }
    changes = {option: value for option, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError(
            "which limit? Give --limit, --rate, --key-limit, --key-rate or --max-waiting"
        )
    await _change(ctl, name, key, changes)


@limit.command(
    examples="""
    jq-ctl limit remove billing                 # back to what the code declares
    jq-ctl limit remove billing --rate          # no rate at all
    jq-ctl limit remove imports --key acme      # as all other keys
    """
)
@click.argument("name", metavar="QUEUE")
@key_option
@click.option("--limit", "limit_", is_flag=True, help="Let any number run.")
@click.option("--rate", is_flag=True, help="Let any number start.")
@click.option("--key-limit", is_flag=True, help="The default per key again: one.")
@click.option("--key-rate", is_flag=True, help="Let any number of a key start.")
@click.option("--max-waiting", is_flag=True, help="Accept any number of jobs.")
@on_store
async def remove(
    ctl: Ctl,
    name: str,
    key: str | None,
    limit_: bool,
    rate: bool,
    key_limit: bool,
    key_rate: bool,
    max_waiting: bool,
) -> None:
    """Remove limits: those named; none named, all of the queue that were changed at run time. Single keys keep theirs."""
    given = {
        "limit": limit_,
        "rate": rate,
        "key_limit": key_limit,
        "key_rate": key_rate,
        "max_waiting": max_waiting,
    }
    await _change(ctl, name, key, {option: None for option, named in given.items() if named})


async def _change(ctl: Ctl, name: str, key: str | None, changes: dict[str, Any]) -> None:
    await ctl.backend.known([name])
    queue = await ctl.backend.queue(name)
    await ctl.backend.within(
        queue.set_limits(key=key, **changes) if changes else queue.reset_limits(key=key)
    )
    limits = await _limits(ctl, name)
    ctl.out.show(_document(name, limits), lambda: _shown([(name, limits)]))


async def _limits(ctl: Ctl, name: str) -> QueueLimits:
    return await ctl.backend.within((await ctl.backend.queue(name)).limits())


# ── how it looks ──────────────────────────────────────────────────────────────────────────────────


def _document(name: str, limits: QueueLimits) -> dict[str, Any]:
    return {
        "queue": name,
        "limit": limits.limit,
        "rate": _rate_document(limits.rate),
        "key_limit": limits.key_limit,
        "key_rate": _rate_document(limits.key_rate),
        "max_waiting": limits.max_waiting,
        "version": limits.version,
        "changed": limits.changed,
        "keys": {
            key: {"key_limit": own.key_limit, "key_rate": _rate_document(own.key_rate)}
            for key, own in limits.keys.items()
        },
        "held_until": _time(limits.held_until),
        "held_keys": {key: _time(until) for key, until in limits.held_keys.items()},
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else text.iso(round(moment.timestamp() * 1000))


def _rate_document(rate: Rate | Bucket | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    if isinstance(rate, Rate):
        return {"limit": rate.limit, "per_ms": rate.per_ms}
    return {"capacity": rate.capacity, "refill": rate.refill}


def _shown(found: Sequence[tuple[str, QueueLimits]]) -> RenderableType:
    parts: list[RenderableType] = []
    for name, limits in found:
        where = (
            "changed at run time"
            if limits.changed
            else f"declared, version {limits.version}"
            if limits.version
            else None
        )
        parts.append(
            details(
                [
                    ("Queue", name),
                    ("Running", _number(limits.limit)),
                    ("Starts", _words(limits.rate)),
                    ("Running per key", _number(limits.key_limit)),
                    ("Starts per key", _words(limits.key_rate)),
                    ("Waiting", _number(limits.max_waiting)),
                    ("From", where),
                    ("Held until", _time(limits.held_until)),
                ]
            )
        )
        if limits.keys:
            rows = [
                [key, _number(own.key_limit) or "-", _words(own.key_rate) or "-"]
                for key, own in sorted(limits.keys.items())
            ]
            parts.append(
                table(
                    (Column("KEY", shrinks=True), Column("RUNNING", right=True), Column("STARTS")),
                    rows,
                )
            )
        if limits.held_keys:
            held = [[key, _time(until) or "-"] for key, until in limits.held_keys.items()]
            parts.append(table((Column("KEY", shrinks=True), Column("HELD UNTIL")), held))
        parts.append(Text())
    return Group(*parts[:-1])


def _number(value: int | None) -> str | None:
    return None if value is None else f"at most {value:,}"


def _words(rate: Rate | Bucket | None) -> str | None:
    if rate is None:
        return None
    if isinstance(rate, Rate):
        return f"{rate.limit:,} per {text.duration(rate.per_ms)}"
    return f"a bucket of {rate.capacity:,}, refilled at {rate.refill:g}/s"
