"""The measurements. Each uses a new store, and runs in the contender's own processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.drive import Unsupported, run, started
from bench.places import Place, place
from bench.roster import Contender

FIRST = 5_000  # jobs of a backlog that are drained
REQUEST_CONCURRENCY = 10  # of the worker that serves requests


@dataclass(frozen=True, kw_only=True)
class Session:
    """One measurement of a contender, with `n` operations."""

    contender: Contender
    n: int
    loop: str
    versions: dict[str, str]

    def run(self, where: Place, **command: Any) -> dict[str, Any]:
        answer = run(self.contender, where, command, loop=self.loop, timeout=600)
        self.versions.update(answer.get("versions", {}))
        return answer


@dataclass(frozen=True, kw_only=True)
class Measure:
    """`take` returns one value per row. Higher is better for /s, lower for all other units."""

    key: str
    rows: tuple[tuple[str, str], ...]  # (title, unit)
    take: Callable[[Session, Place], tuple[float, ...]]
    probe: int  # n of the first run, which does not count; its rate determines n of the others
    max_n: int
    fixed: bool = False  # n is always `probe`


def _enqueue(mode: str) -> Callable[[Session, Place], tuple[float, ...]]:
    def take(session: Session, where: Place) -> tuple[float, ...]:
        answer = session.run(where, do="enqueue", mode=mode, n=session.n)
        return (answer["n"] / answer["seconds"],)

    return take


def _drain(
    concurrency: int, backlog: int | None = None
) -> Callable[[Session, Place], tuple[float, ...]]:
    """Jobs per second of one worker process, from its first handler call on.

    With a backlog, only its first jobs are drained."""

    def take(session: Session, where: Place) -> tuple[float, ...]:
        # 10 % more jobs than are timed, because the last jobs of a queue do not fill all slots.
        fill, target = (
            (backlog, FIRST) if backlog else (session.n + session.n // 10 + concurrency, session.n)
        )
        command = {"do": "work", "concurrency": concurrency, "target": target}
        if where.shared:
            _fill(session, where, fill)
        else:
            command["fill"] = fill
        with started(session.contender, where, command, loop=session.loop) as worker:
            answer = worker.answer(600)
        return (answer["n"] / answer["seconds"],)

    return take


def _fill(session: Session, where: Place, n: int) -> None:
    session.run(where, do="fill", n=n)
    where.filled()


def _request(session: Session, where: Place) -> tuple[float, ...]:
    """Round trips, one at a time, with an idle worker in another process."""
    if not where.shared:
        return percentiles(session.run(where, do="request", n=session.n)["ms"])
    work = {"do": "work", "concurrency": REQUEST_CONCURRENCY, "target": 0}
    with started(session.contender, where, work, loop=session.loop) as worker:
        try:
            return percentiles(session.run(where, do="request", n=session.n)["ms"])
        except Exception:
            if worker.process.poll() is not None:
                worker.answer(1)  # raises an error that says why the worker ended
            raise


def percentiles(ms: list[float]) -> tuple[float, float]:
    """The 50th and the 99th percentile."""
    ordered = sorted(ms)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _bytes(session: Session, where: Place) -> tuple[float, ...]:
    """The bytes that one more waiting job takes, with a payload of 100 characters."""
    _fill(session, where, 1000)
    before = where.bytes_used()
    if before is None:
        raise Unsupported("the store does not report its size")
    _fill(session, where, session.n)
    return (((where.bytes_used() or 0) - before) / session.n,)


def _rate(
    key: str,
    title: str,
    take: Callable[[Session, Place], tuple[float, ...]],
    *,
    probe: int,
    max_n: int,
) -> Measure:
    return Measure(key=key, rows=((title, "/s"),), take=take, probe=probe, max_n=max_n)


def backlog(key: str, waiting: int) -> Measure:
    """Drain the first jobs of a large backlog."""
    title = f"drain of the first {FIRST:,} of {waiting:,}"
    return Measure(
        key=key, rows=((title, "/s"),), take=_drain(100, waiting), probe=1, max_n=1, fixed=True
    )


_ALL = (
    _rate("one", "enqueue one by one", _enqueue("one"), probe=500, max_n=50_000),
    _rate("concurrent", "enqueue concurrently", _enqueue("concurrent"), probe=1000, max_n=100_000),
    _rate("bulk", "enqueue in bulk", _enqueue("bulk"), probe=2000, max_n=300_000),
    _rate("drain1", "drain, concurrency 1", _drain(1), probe=300, max_n=30_000),
    _rate("drain10", "drain, concurrency 10", _drain(10), probe=500, max_n=100_000),
    _rate("drain100", "drain, concurrency 100", _drain(100), probe=1000, max_n=100_000),
    Measure(
        key="request",
        rows=(("request/response p50", "ms"), ("request/response p99", "ms")),
        take=_request,
        probe=500,
        max_n=500,
        fixed=True,
    ),
    backlog("backlog10k", 10_000),
    backlog("backlog1m", 1_000_000),
    Measure(
        key="bytes",
        rows=(("memory or disk per waiting job", "B"),),
        take=_bytes,
        probe=20_000,
        max_n=20_000,
        fixed=True,
    ),
)

MEASURES: dict[str, Measure] = {measure.key: measure for measure in _ALL}


def values(
    measure: Measure, contender: Contender, *, n: int, loop: str, versions: dict[str, str]
) -> Iterator[tuple[str, str, float]]:
    """Measure once: (title, unit, value) per row."""
    with place(contender.place, contender.url) as where:
        session = Session(contender=contender, n=n, loop=loop, versions=versions)
        if contender.place == "postgres":  # its tables exist before anything is timed
            session.run(where, do="prepare")
        taken = measure.take(session, where)
    for (title, unit), value in zip(measure.rows, taken, strict=True):
        yield title, unit, value
