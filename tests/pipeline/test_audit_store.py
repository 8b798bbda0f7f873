"""What the audit reads of a store, and how it compares it with the lake. No Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobq.core.records.jobs import QueueName
from jobq.pipeline.audit import audit
from jobq.pipeline.audit import store as audit_store
from jobq.pipeline.audit.proof import LogProof, QueueTotals
from jobq.pipeline.audit.store import StoreView, Tip, records, view
from jobq.pipeline.audit.verdict import QueueAudit
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq_conformance.kit import Desk, FakeClock

NAME = ("acme", "mail")


async def put(store: Store, *ids: str, clock: FakeClock, name: tuple[str, str] = NAME) -> None:
    """Put jobs one second apart."""
    for id in ids:
        clock.advance(1000)
        await Desk(store, QueueName(*name), clock).put(id)


class Seen(NamedTuple):
    """What the lake has, instead of `Evidence`. The last events come `after` something else."""

    jobs: Sequence[Tip]
    checked: dict[tuple[str, str], int]
    after: Callable[[], None] = lambda: None

    def tips(self, *, every: Any) -> Iterator[Tip]:
        self.after()
        yield from self.jobs

    def unknown(self, keys: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
        return [key for key in keys if key[2] not in {tip.job for tip in self.jobs}]


def tip(id: str, created_ms: int, **fields: Any) -> Tip:
    known = {"life": 0, "attempt": 0, "state": "waiting", "name": "task", **fields}
    return Tip(*NAME, id, created_ms=created_ms, **known)


def in_lake(seen: StoreView, proved: int) -> dict[tuple[str, str], QueueAudit]:
    """The queue, with a log that is proved up to a number."""
    tenant, queue = NAME
    log = LogProof(
        tenant=tenant, queue=queue, log=seen.ends[0].log, shard=0, proved=proved, last=proved
    )
    totals = QueueTotals(
        tenant=tenant, queue=queue, accepted=proved, jobs=proved, states={"waiting": proved}
    )
    return {NAME: QueueAudit(totals=totals, logs=(log,))}


class Changing:
    """A store that a test changes between the steps of an audit, or within one."""

    def __init__(self, folder: Path) -> None:
        self.url, self.clock = f"sqlite:///{folder}/jobs.db", FakeClock()
        self.born: dict[str, int] = {}

    def put(self, *ids: str) -> None:
        """Put jobs, in a thread: the audit's own loop may be running."""

        async def run() -> None:
            async with open_store(self.url, clock=self.clock) as store:
                for id in ids:
                    await put(store, id, clock=self.clock)
                    self.born[id] = self.clock.now_ms

        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: asyncio.run(run())).result(60)

    def view(self) -> dict[tuple[str, str], StoreView]:
        return asyncio.run(view(self.url, ()))

    def compared(
        self,
        found: dict[tuple[str, str], QueueAudit],
        begun: dict[tuple[str, str], StoreView],
        seen: Seen,
    ) -> QueueAudit:
        evidence: Any = seen
        return audit._compared(found, self.url, begun, evidence, since=None)[NAME]


async def test_the_stores_view_has_queues_that_the_lake_does_not_have(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path}/jobs.db", FakeClock()
    async with open_store(url, clock=clock) as store:
        await put(store, "a", "b", clock=clock)
        await put(store, "c", clock=clock, name=("globex", "unseen"))
    seen = await view(url, [NAME, ("acme", "only in the lake")])
    ends = {name: [end.number for end in found.ends] for name, found in seen.items()}
    assert ends == {NAME: [2], ("globex", "unseen"): [1], ("acme", "only in the lake"): []}
    assert seen[NAME].counts["waiting"] == 2


async def test_the_jobs_of_a_store_are_read_page_by_page_back_to_the_last_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_store, "_GET", 2)
    url, clock = f"sqlite:///{tmp_path}/jobs.db", FakeClock()
    begun = clock.now_ms
    async with open_store(url, clock=clock) as store:
        await put(store, *"abcdefg", clock=clock)

    async def found(most: int | None, since_ms: int) -> str:
        jobs = [job async for _, _, job in records(url, [NAME], most=most, since_ms=since_ms)]
        return "".join(sorted(jobs))

    assert await found(None, 0) == "abcdefg"
    assert await found(None, begun + 4000) == "efg"  # d was created at that time
    assert await found(3, 0) == "efg"
    assert await found(3, begun + 6000) == "g"


def test_a_queue_is_audited_to_the_end_that_its_log_had_when_the_audit_began(
    tmp_path: Path,
) -> None:
    store = Changing(tmp_path)
    store.put("a", "b")
    begun = store.view()
    store.put("c")
    seen = Seen([tip("a", store.born["a"]), tip("b", store.born["b"])], {NAME: 2})
    found = store.compared(in_lake(begun[NAME], 2), begun, seen)
    assert (found.behind, found.quiet, found.problems) == (0, False, [])
    store.put("d")
    assert store.compared(in_lake(begun[NAME], 2), store.view(), seen).behind == 2


def test_jobs_unlike_the_store_are_found_on_both_sides(tmp_path: Path) -> None:
    store = Changing(tmp_path)
    store.put("a", "b", "c")
    now = store.view()
    jobs = [tip("a", store.born["a"]), tip("b", store.born["b"], attempt=1)]
    found = store.compared(in_lake(now[NAME], 3), now, Seen(jobs, {NAME: 3}))
    assert (found.quiet, found.compared, found.contradicted) == (True, 2, 2)
    assert [(one.job, one.fault[:32]) for one in found.contradictions] == [
        ("b", "life 0, waiting, attempt 1, task"),
        ("c", "in the store, but not in the lak"),
    ]


def test_a_queue_that_moved_on_while_its_jobs_were_read_is_compared_by_the_next_audit(
    tmp_path: Path,
) -> None:
    store = Changing(tmp_path)
    store.put("a")
    now = store.view()
    jobs, lake = [tip("a", store.born["a"])], in_lake(now[NAME], 1)
    moving = Seen(jobs, {NAME: 1}, after=lambda: store.put("b"))
    found = store.compared(lake, now, moving)
    assert (found.compared, found.contradicted, found.problems) == (0, 0, [])
