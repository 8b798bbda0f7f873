"""Positions in the event log come from the log. Anything else is refused."""

from __future__ import annotations

import pytest

from jobq.core.records.queues import QueueConfig
from jobq.errors import ConfigError, InvalidJob
from jobq_conformance.kit import Desk
from jobq_conformance.roles import needs

pytestmark = needs("events")

NONE_OF_THEM = [
    "",
    "x",
    "-1",
    "1.5",
    "9" * 40,
    "0-",
    "[]",
    '["0"]',
    "{",
    "0,",
    ",",
    "1,x",
    "0,0,0",
    "\ud800",
    "٣",
    "0 0",
]


@pytest.mark.parametrize("after", NONE_OF_THEM)
async def test_what_is_no_position_is_refused(q: Desk, after: str) -> None:
    await q.put("a", "b")
    with pytest.raises(InvalidJob, match="not a position"):
        await q.store.read_events(q.queue, after=after)
    with pytest.raises(InvalidJob, match="not a position"):
        await q.store.ack_events(q.queue, "reader", after)
    assert await q.store.readers(q.queue) == {}


@pytest.mark.parametrize("after", NONE_OF_THEM)
async def test_what_is_no_position_of_a_partitioned_queue_is_refused(q: Desk, after: str) -> None:
    try:
        await q.store.declare(q.queue, QueueConfig(partitions=2))
    except ConfigError:
        pytest.skip("this store has no partitions")
    await q.put("a", "b")
    with pytest.raises(InvalidJob, match="not a position"):
        await q.store.read_events(q.queue, after=after)
