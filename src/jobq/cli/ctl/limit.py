"""`jq-ctl limit …`: show and change how many jobs of a queue or key may run or start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.api.queue_operations import QueueLimits
from jobq.cli import text
from jobq.cli.options import Ctl, noun, on_store
from jobq.cli.output import Column, details, table
from jobq.core.policies import Bucket, Rate
from jobq.errors import ConfigError
from jobq.operations.limits import parse_rate

limit = noun("limit", "Show and change the limits of queues and keys.")
key_option = click.option(
    "--key", metavar="KEY", help="Only for this key of a keyed queue. Default: the queue."
)

if TYPE_CHECKING:
    _Policy = click.ParamType[Rate | Bucket]
else:  # generic since click 8.2 only
    _Policy = click.ParamType


class RateParam(_Policy):
    """A start rate: `100/1m` or `10+0.5/s`."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Rate | Bucket:
        """Parse the rate."""
        try:
            return parse_rate(value)
        except ConfigError as e:
            self.fail(str(e), param, ctx)


RATE = RateParam()


@limit.command(examples="jq-ctl limit show billing\njq-ctl limit show -o json")
@click.argument("names", metavar="[QUEUE...]", nargs=-1)
@on_store
async def show(ctl: Ctl, names: tuple[str, ...]) -> None:
    """Show the limits in effect, including those of single keys."""
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
    jq-ctl limit set api --rate 10+0.5/s        # a bucket of 10 tokens, refilled at 0.5 per s
    """,
)
@click.argument("name", metavar="QUEUE")
@key_option
@click.option(
    "--limit",
    "max_running",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum jobs of the queue that run at once.",
)
@click.option(
    "--rate",
    type=RATE,
    metavar="RATE",
    help="Maximum starts, e.g. 100/1m, or a token bucket, e.g. 10+0.5/s.",
)
@click.option(
    "--key-limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum jobs of one key that run at once.",
)
@click.option(
    "--key-rate", type=RATE, metavar="RATE", help="Maximum starts per key, as for --rate."
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum unstarted jobs. A full queue rejects new jobs.",
)
@on_store
async def set_(
    ctl: Ctl,
    name: str,
    key: str | None,
    max_running: int | None,
    rate: Rate | Bucket | None,
    key_limit: int | None,
    key_rate: Rate | Bucket | None,
    max_waiting: int | None,
) -> None:
    """Change limits at once, for all workers. Limits that are not given stay as they are.

    The change holds until a deploy declares the queue with a higher limits_version."""
    given = {
        "limit": max_running,
        "rate": rate,
        "key_limit": key_limit,
        "key_rate": key_rate,
        "max_waiting": max_waiting,
    }
    changes = {option: value for option, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError(
            "nothing to change: give --limit, --rate, --key-limit, --key-rate or --max-waiting"
        )
    await _change(ctl, name, key, changes)


@limit.command(
    examples="""
    jq-ctl limit remove billing                 # return to the limits declared in code
    jq-ctl limit remove billing --rate          # no start rate
    jq-ctl limit remove imports --key acme      # same limits as the other keys
    """
)
@click.argument("name", metavar="QUEUE")
@key_option
@click.option("--limit", "limit_", is_flag=True, help="Let any number of jobs run at once.")
@click.option("--rate", is_flag=True, help="Let jobs start at any rate.")
@click.option("--key-limit", is_flag=True, help="Return to the default of one job per key.")
@click.option("--key-rate", is_flag=True, help="Let jobs of one key start at any rate.")
@click.option("--max-waiting", is_flag=True, help="Accept any number of unstarted jobs.")
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
    """Remove the given limits.

    Without options, undo every change that was made to the queue at run time. Limits of single keys
    stay."""
    given = {
        "limit": limit_,
        "rate": rate,
        "key_limit": key_limit,
        "key_rate": key_rate,
        "max_waiting": max_waiting,
    }
    await _change(ctl, name, key, {option: None for option, remove in given.items() if remove})


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


# ── output ────────────────────────────────────────────────────────────────────────────────────────


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
        return {"limit": rate.count, "per_ms": rate.per_ms}
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
        return f"{rate.count:,} per {text.duration(rate.per_ms)}"
    return f"a bucket of {rate.capacity:,}, refilled at {rate.refill:g}/s"
