"""Rows with values that jobq never writes: they are listed, as damaged, beside the others."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import Filter, JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.stores import open_store
from tests.stores.postgres.servers import ask

QUEUE = QueueName("t", "q")
VALUES = {
    "options": "'\\xff'",
    "flags": "1073741824",
    "life": "-1",
    "attempt": "-1",
    "failures": "-1",
    "stalls": "-1",
    "follows": "7",
    "created_ms": "4611686018427387904",
    "due_ms": "-4611686018427387904",
    "started_ms": "4611686018427387904",
}


@pytest.mark.parametrize("column", VALUES)
async def test_a_damaged_row_is_listed_as_damaged_beside_others(
    url: str, store: str, column: str
) -> None:
    schema = store.partition("schema=")[2]
    async with open_store(store) as opened:
        await opened.put(
            [JobSpec(queue=QUEUE, id=id, name="n", payload=b"[[],{}]") for id in ("a", "b", "c")]
        )
        ask(url, f"update {schema}.jobs set {column} = {VALUES[column]} where id = 'b'")
        page = await opened.find(Filter(queue=QUEUE))
        found = [*page.records, *await opened.get([JobKey(QUEUE, "b")])]
        for record in found:
            assert record is not None
            assert record.state is State.WAITING
            damaged = record.failure is not None and record.failure.type == "Unreadable"
            assert damaged == (record.id == "b")
        assert sorted(record.id for record in page.records) == ["a", "b", "c"]
