"""What is measured, each in a fresh place and in processes of the contender's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.drive import Unsupported, run, started
from bench.places import Place, place
from bench.roster import Contender

FIRST = 5_000  # of a backlog
REQUEST_CONCURRENCY = 10


@dataclass(frozen=True, kw_only=True)
class Session:
    """How a contender is measured now: `n` operations."""

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
    """`take` gives one value per row: rates per second are better when higher, everything else when lower."""

    key: str
    rows: tuple[tuple[str, str], ...]  # (title, unit)
    take: Callable[[Session, Place], tuple[float, ...]]
    probe: int  # the n of the first, uncounted run, from which the others follow
    most: int
    fixed: bool = False  # n is `probe`, whatever the speed


def _enqueue(mode: str) -> Callable[[Session, Place], tuple[float, ...]]:
    def take(session: Session, where: Place) -> tuple[float, ...]:
        answer = session.run(where, do="enqueue", mode=mode, n=session.n)
        return (answer["n"] / answer["seconds"],)

    return take


def _drain(
    concurrency: int, backlog: int | None = None
) -> Callable[[Session, Place], tuple[float, ...]]:
    """Jobs per second of one worker process, from its first handler call on. With a backlog: over its first part."""

    def take(session: Session, where: Place) -> tuple[float, ...]:
        # A tenth more than is timed: the end of the line, with ever fewer jobs at once, is not what is measured.
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


def _request(session: Session, where: Place) -> tuple[float, ...]:
    """Round trips one after another, with an idle worker waiting in a process of its own."""
    if not where.shared:
        return percentiles(session.run(where, do="request", n=session.n)["ms"])
    work = {"do": "work", "concurrency": REQUEST_CONCURRENCY, "target": 0}
    with started(session.contender, where, work, loop=session.loop) as worker:
        try:
            return percentiles(session.run(where, do="request", n=session.n)["ms"])
        except Exception:
            if worker.process.poll() is not None:
                worker.answer(1)  # says why the worker is gone
            raise


def percentiles(ms: list[float]) -> tuple[float, float]:
    """p50 and p99."""
    ordered = sorted(ms)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _bytes(session: Session, where: Place) -> tuple[float, ...]:
    """What one more waiting job takes, with a payload of 100 characters."""
    _fill(session, where, 1000)
    before = where.bytes_used()
    if before is None:
        raise Unsupported("the store does not say")
    _fill(session, where, session.n)
    return (((where.bytes_used() or 0) - before) / session.n,)


def _rate(
    key: str,
    title: str,
    take: Callable[[Session, Place], tuple[float, ...]],
    *,
    probe: int,
    most: int,
) -> Measure:
    return Measure(key=key, rows=((title, "/s"),), take=take, probe=probe, most=most)


def backlog(key: str, waiting: int) -> Measure:
    """The first part of a long line."""
    title = f"drain of the first {FIRST:,} of {waiting:,}"
    return Measure(
        key=key, rows=((title, "/s"),), take=_drain(100, waiting), probe=1, most=1, fixed=True
    )


_ALL = (
    _rate("one", "enqueue one by one", _enqueue("one"), probe=500, most=50_000),
    _rate("concurrent", "enqueue concurrently", _enqueue("concurrent"), probe=1000, most=100_000),
    _rate("bulk", "enqueue in bulk", _enqueue("bulk"), probe=2000, most=300_000),
    _rate("drain1", "drain, concurrency 1", _drain(1), probe=300, most=30_000),
    _rate("drain10", "drain, concurrency 10", _drain(10), probe=500, most=100_000),
    _rate("drain100", "drain, concurrency 100", _drain(100), probe=1000, most=100_000),
    Measure(
        key="request",
        rows=(("request/response p50", "ms"), ("request/response p99", "ms")),
        take=_request,
        probe=500,
        most=500,
        fixed=True,
    ),
    backlog("backlog10k", 10_000),
    backlog("backlog1m", 1_000_000),
    Measure(
        key="bytes",
        rows=(("memory or disk per waiting job", "B"),),
        take=_bytes,
        probe=20_000,
        most=20_000,
        fixed=True,
    ),
)

MEASURES: dict[str, Measure] = {measure.key: measure for measure in _ALL}


def values(
    measure: Measure, contender: Contender, *, n: int, loop: str, versions: dict[str, str]
) -> Iterator[tuple[str, str, float]]:
    """Measure once: (title, unit, value) per row."""
    with place(contender.place, contender.url) as where:
        taken = measure.take(Session(contender=contender, n=n, loop=loop, versions=versions), where)
    for (title, unit), value in zip(measure.rows, taken, strict=True):
        yield title, unit, value
