"""What is each mechanism of the PostgreSQL store worth? Each one against doing without it.

    python -m bench.postgres_paths                      all of them, about 10 minutes
    python -m bench.postgres_paths --only exchange,put  some of them
    python -m bench.postgres_paths --rounds 1 --jobs 200 --dead 500 --sleeps 50      a quick test

Both sides alternate in one run, on one server. A ratio is the median time without the mechanism
over the median time with it: 1.50 means that it takes half as long again without the mechanism. The
last column is the range of the middle half of all pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Iterator

from bench.places import postgres_database
from bench.postgres_paths.held import Row, held_rows, sleeper_rows
from bench.postgres_paths.measures import MEASURES, Sizes
from bench.postgres_paths.without import WITHOUT, patched


def compared(name: str, size: Sizes) -> Iterator[Row]:
    """Measure with and without a mechanism in turn. Each time has a new database."""
    what, patches, measures = WITHOUT[name]
    for measure in measures:
        title, take = MEASURES[measure]
        took: tuple[list[float], list[float]] = ([], [])
        for n in range(size.rounds):
            for side in (0, 1) if n % 2 == 0 else (1, 0):
                with postgres_database() as where, patched(patches if side else ()):
                    took[side].append(asyncio.run(take(where, size)))
        yield Row(f"{name}: {what}", title, *took)


def measured(names: list[str], size: Sizes) -> Iterator[Row]:
    """Everything that these names ask for."""
    for name in names:
        if name in WITHOUT:
            yield from compared(name, size)
        else:
            with postgres_database() as where:
                yield from asyncio.run(HELD[name](where.url, size))


HELD = {"floors": held_rows, "sleepers": sleeper_rows}


def main() -> None:
    """Measure, and print each row as soon as it is known."""
    everything = [*WITHOUT, *HELD]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help=f"some of {', '.join(everything)}")
    parser.add_argument("--rounds", type=int, default=5, help="of each side (%(default)s)")
    parser.add_argument("--jobs", type=int, default=8_000, help="to drain (%(default)s)")
    parser.add_argument(
        "--dead", type=int, default=100_000, help="jobs under a held snapshot (%(default)s)"
    )
    parser.add_argument("--sleeps", type=int, default=5_000, help="under it (%(default)s)")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else everything
    if unknown := set(names) - set(everything):
        parser.error(
            f"--only: there is no {', '.join(sorted(unknown))}; choose from {', '.join(everything)}"
        )
    size = Sizes(given.rounds, given.jobs, given.dead, given.sleeps)
    print(
        f"{'without':<58}{'measured':<40}{'with, ms':>10}{'without':>10}{'ratio':>7}  half of them"
    )
    for row in measured(names, size):
        pairs = sorted(b / a for a, b in zip(row.with_it, row.without, strict=True))
        few = len(pairs) // 4
        with_it, without = statistics.median(row.with_it), statistics.median(row.without)
        print(
            f"{row.what:<58}{row.measured:<40}{with_it * 1000:>10.3f}{without * 1000:>10.3f}"
            f"{without / with_it:>7.2f}  {pairs[few]:.2f} to {pairs[-1 - few]:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
