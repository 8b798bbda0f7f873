"""The audit proves queues in which one id was put, purged and rerun at random, on every store.

(id, life) repeats in them: a new job of a purged id begins again in life 0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from jobq.core.records.jobs import QueueName
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.lake import Lake
from jobq.stores import open_store
from jobq_conformance.kit import Desk, FakeClock
from jobq_conformance.lives import Lives
from tests.pipeline import stories
from tests.pipeline.conftest import take_in
from tests.stores.valkey import servers

SEEDS = 15


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
    else:
        with servers.running(servers.valkey_or_skip(), tmp_path) as server:
            yield server.url


async def histories(url: str, folder: Path) -> dict[str, stories.Lines]:
    """The events of random histories, each in a queue of its own."""
    clock = FakeClock()
    async with open_store(url, clock=clock) as store:
        for seed in range(SEEDS):
            queue = QueueName(stories.TENANT, f"q{seed}")
            await Lives(Desk(store, queue, clock), Random(2000 + seed)).play(80)
        return await stories.ship(store, folder)


def test_histories_of_one_id_are_proved(lake: Lake, url: str, tmp_path: Path) -> None:
    shipped = asyncio.run(histories(url, tmp_path / "shipped"))
    lines = [line for each in shipped.values() for line in each]
    mine = [line for line in lines if (line["kind"], line["job"]) == ("accepted", "a")]
    begun = [(line["queue"], line["life"]) for line in mine]
    assert len({*begun}) < len(begun), "no life was repeated"
    take_in(lake, lines)
    found = audit(lake, store=url)
    said = {queue.queue: (queue.verdict, queue.problems, queue.doubts) for queue in found.queues}
    assert said == {f"q{seed}": ("proved", [], []) for seed in range(SEEDS)}
