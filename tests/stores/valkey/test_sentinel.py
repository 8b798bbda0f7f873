"""Sentinels that do not know the primary."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.core.records.jobs import QueueName
from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores import open_store
from tests.stores.valkey import servers
from tests.stores.valkey.jobs import spec

QUEUE = QueueName("tests", "work")


async def test_sentinels_that_lost_their_configuration_are_passed_over(tmp_path: Path) -> None:
    servers.valkey_or_skip()
    with servers.running_sentinel(tmp_path) as watched:
        first, *others = watched.sentinels
        first.tell("SENTINEL", "REMOVE", "jobs")
        async with open_store(watched.url) as store:
            await store.put([spec(QUEUE, "a")])
            for each in others:
                each.tell("SENTINEL", "REMOVE", "jobs")
            watched.primary.kill()
            for _ in range(2):  # the connection is lost, then the server does not accept another
                with pytest.raises(StoreUnavailable):
                    await store.put([spec(QUEUE, "b")])
            with pytest.raises(StoreUnavailable, match="forgotten the primary 'jobs'"):
                await store.put([spec(QUEUE, "b")])
        with pytest.raises(ConfigError, match="check the name"):
            await open_store(watched.url).migrate()
