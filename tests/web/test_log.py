"""Finding what happened to a job in a long log, with few reads."""

from __future__ import annotations

from typing import Any

from jobq.core.records.events import EventPage
from jobq.core.records.jobs import Claim, Complete, JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.web.data.log import _Times, tail
from tests.web.conftest import Make
from tests.web.kit import Browser

QUEUE = QueueName("acme", "mail")


class Counting:
    """A store that counts reads of its log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = 0

    async def read_events(self, *args: Any, **options: Any) -> EventPage:
        self.reads += 1
        return await self._store.read_events(*args, **options)


def _spec(id: str) -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="send", payload=b"[[],{}]")


async def test_any_time_is_found_in_a_log_with_few_reads() -> None:
    now = 1_000_000
    async with open_store("memory://web-log-times", clock=lambda: now) as store:
        times: dict[str, int] = {}
        for n in range(1_500):
            now += 1 if n % 100 else 60_000  # bursts, and pauses between them
            times[str(n)] = now
            await store.put([_spec(str(n))])
        end = (await store.read_events(QUEUE, after=None)).position
        for id in ("0", "1", "99", "100", "750", "1498", "1499"):
            counting = Counting(store)
            start = await _Times(counting, QUEUE, end).before(times[id])  # type: ignore[arg-type]
            page = await store.read_events(QUEUE, after=start, limit=1)
            assert page.events[0].job == id
            assert counting.reads <= 25, id
        assert [e.job for e in await tail(store, QUEUE, want=3)] == ["1497", "1498", "1499"]


async def test_the_newest_events_are_found_behind_large_batches(store: Store) -> None:
    for batch in range(20):
        await store.put([_spec(f"{batch}-{n}") for n in range(100)])
    for n in range(10):
        await store.put([_spec(f"last-{n}")])
    assert [e.job for e in await tail(store, QUEUE)][-1] == "last-9"


async def test_the_events_of_a_job_are_found_between_thousands_of_others(
    store: Store, browse: Make
) -> None:
    others = [_spec(f"other-{n}") for n in range(500)]
    await store.put(others)
    await store.put([_spec("mine")])
    for start in range(0, 500, 100):
        await store.put([_spec(f"later-{start + n}") for n in range(100)])
    claim = Claim(queues=(QUEUE,), limit=501, lease_ms=3_600_000)
    leases = (await store.settle([], worker="w", call="1", then=claim)).leases
    await store.settle(
        [Complete(queue=QUEUE, id=each.id, token=each.token) for each in leases],
        worker="w",
        call="2",
    )
    await store.put([_spec(f"last-{n}") for n in range(500)])
    browser: Browser = browse(store)
    shown = await browser.read("job", tenant="acme", queue="mail", id="mine")
    assert [entry["kind"] for entry in shown["timeline"]] == ["accepted", "started", "completed"]
    assert all(entry["id"] for entry in shown["timeline"]), "they come from the log"
