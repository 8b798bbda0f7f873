"""Write docs/growth.md and its plots from a saved run.

python -m bench.growth.page out/growth/growth.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from bench import svg
from bench.growth.__main__ import DIMENSIONS
from bench.growth.compared import Dimension
from bench.growth.figures import Figure, Run, shown
from bench.growth.report import ends, ratio
from bench.svg import short

DOCS = Path("docs")
IMAGES = DOCS / "images"

TITLE = """# What grows, and what does not

<!-- Written by `python -m bench.growth.page` after `make bench-growth`. -->"""

HEAD = """\
`make bench-growth` fills stores of several sizes, makes the same calls on all of them in turns, and
compares the fastest of each. Times are processor time of the client and the server, because elapsed
time depends on what else the machine does. Each measure has a bound, and the program exits with 1
if one is exceeded. `make bench-growth ARGS='--quick'` takes a few minutes, and `--only` and
`--store` choose a part.

A ratio of ×1 means that a call takes as long in the large store as in the small one. A bound of
"×2 or +1" allows twice the time or 1 ms more. An index of a thousand times as many entries is one
or two levels deeper, and its pages are less often in a cache: that is at most twice the work. The
shortest calls take 0.1 ms, and one interrupt takes as long. A call that reads a backlog a thousand
times as long would show as ×1000. "Per job" and "per queue" mean that a call has to look at all of
them, and that each costs the same at every size. The other bounds follow from what a call does, and
`bench/growth` says how, beside each of them."""

ABOUT = {
    "waiting": """A claim, a put and a page of a listing take as long in a long queue as in a
short one. The columns of each table are the sizes at which it was measured.
`python -m bench.backlog_postgres` compares claims at ten million on PostgreSQL. A reader of
events is registered on the queue and reads nothing. The log keeps what the reader has not read, up
to a hard cap of 5,000,000 events (2,000,000 on Valkey). Then the oldest events are dropped and the
reader finds a gap. Nobody else is slowed down.""",
    "queues": """Ten queues per tenant: 10,000 queues belong to 1,000 tenants. A worker pays for the
queues it works on, not for those that exist. Upkeep visits all queues, a bounded number per call.
The metrics of jq-server name up to 1,000 queues.""",
    "schedules": """A scheduler reads the schedules that are due. The others cost it nothing.""",
    "keys": """A key costs nothing after its last job has ended: the number of rows (on Valkey, of
keys in the server) that a drained queue leaves behind does not depend on how many keys it had.""",
    "submits": """A flow is submitted by calls of 1,000 jobs. The last call makes jobs of all of
them, by steps of up to 500 jobs and edges. Each step is one transaction, or one call to a Valkey
server, and others are served in between. So nobody waits longer because of a large flow, and no
lease or timeout depends on its size. The last call itself takes as long as all its steps.

A flow that is part of a [transaction of your own](guide/transactions.md) is stored by one statement
after the other of that transaction, about 0.5 ms per job. Others that write to its queues wait
until you commit.""",
    "flows": """One job waits for all children. The end of a child costs the same in a large flow as
in a small one.

Some calls are about all children, and take time in proportion to them. They are compared per child.
The start of a parent of 100,000 takes 0.2 s on SQLite, 0.3 s on PostgreSQL and 0.9 s on Valkey,
whose server does nothing else for a part of that time. A call may take 5 s on Valkey and 10 s on
PostgreSQL, and a lease is 15 s by default, so neither ends before.

- The start of the parent reads how each child has ended.
- `get` of the parent lists up to 20,000 children.
- A cancel with its children, and a rerun of the parent, visit each child.
- The end of a job *for which* many others wait releases all of them in one call: 0.03 ms for each
  on SQLite, 0.05 ms on Valkey and 0.1 ms on PostgreSQL (measured with 3,000). For 100,000, that is
  the timeout of a call on Valkey and PostgreSQL. If more than 30,000 jobs wait for one, set a
  longer timeout (`?timeout=60`), or let groups of them wait for jobs in between.""",
    "payloads": """Arguments up to 1 MiB are accepted by default (`max_payload`). Larger ones are
refused before anything is stored. Calls that carry arguments take time in proportion to the bytes,
and so does the end of a job, because its record is stored again; other calls are not affected.""",
    "overload": """A worker with ten slots runs jobs of 50 ms, and jobs arrive faster. A worker
claims a job only for a free slot, so it holds ten jobs, and its memory does not depend on how many
wait.""",
    "poison": """The handler of a poison job kills its process in each run, among 200 other jobs.
Such a job runs at most four times (`max_stalls=3`) and is then dead (failed, `stalled`). All its
neighbours complete. A neighbour that ran in the killed process runs again.""",
    "week": """A week of simulated time on SQLite: 1,200 jobs per hour in a plain and a keyed queue,
with retries, snoozes, failures, dead letters, flows, unique locks, schedules and log lines. Keys,
locks and names of workers are new every hour, and jobs are kept for a day. The bound compares the
highest value of the last quarter with the quarter before. File, rows, log and memory stop
growing when the retention (a day) and the length of the log (200,000 events per queue) are
reached.

One thing grows for as long as nobody looks at it: a dead-letter queue. Copies of failed jobs wait
there until a worker runs them or somebody removes them, and no retention applies to waiting jobs.
In the simulation, an operator empties it every twelve hours.""",
}


def page(run: Run) -> str:
    """The whole page. Every number comes from the run."""
    machine, day = run.machine, datetime.fromisoformat(run.began).strftime("%d %B %Y")
    parts = [
        TITLE,
        f"Measured on commit `{run.commit}`, {day}; not measured again since. {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}. "
        f"{len(run.figures)} measures, {len(run.exceeded)} above their bound"
        + (", and smaller sizes than usual (`--quick`)." if run.quick else "."),
        HEAD,
    ]
    for name, dimension in DIMENSIONS.items():
        figures = [each for each in run.figures if each.dimension == name]
        if figures:
            parts += [
                f"## {dimension.title[0].upper()}{dimension.title[1:]}",
                ABOUT[name],
                f"![{dimension.title}](images/growth-{name}.svg)",
                *(_table(figures, store) for store in _stores(figures)),
            ]
    return "\n\n".join(parts) + "\n"


def _stores(figures: Sequence[Figure]) -> list[str]:
    return list(dict.fromkeys(each.store for each in figures))


def _table(figures: Sequence[Figure], store: str) -> str:
    mine = [each for each in figures if each.store == store]
    sizes = [short(size) for size, _ in ends(mine[0])]
    lines = [
        f"| {store} | {' | '.join(sizes)} | ratio | bound |",
        "|---|" + "---:|" * (len(sizes) + 2),
    ]
    for each in mine:
        values = " | ".join(shown(value, each.unit) for _, value in ends(each))
        over = "" if each.kept else " **exceeded**"
        lines.append(f"| {each.what} | {values} | {ratio(each)}{over} | {each.bound} |")
    return "\n".join(lines)


def plot(dimension: Dimension, figures: Sequence[Figure]) -> str:
    """A small chart per measure, with a line per store."""
    charts: dict[str, dict[str, svg.Points]] = {}
    for each in figures:
        line = list(zip(each.sizes, each.values, strict=True))
        charts.setdefault(f"{each.what}, {each.unit}", {})[each.store] = line
    return svg.line_charts(dimension.title, charts, log=dimension.log, x_label=dimension.x_label)


def main() -> None:
    """Write the page and the plots."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = Run.load(Path(sys.argv[1]))
    (DOCS / "growth.md").write_text(page(run))
    for name, dimension in DIMENSIONS.items():
        if figures := [each for each in run.figures if each.dimension == name]:
            (IMAGES / f"growth-{name}.svg").write_text(plot(dimension, figures))
    print(f"wrote {DOCS / 'growth.md'} and its plots")


if __name__ == "__main__":
    main()
