"""PostgreSQL loses its primary, or its disk is full, while a worker and a producer go on."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.stores.postgres import servers
from tests.stores.postgres.load import load_on
from tests.stores.postgres.servers import FAST, ask
from tests.waiting import takes

pytestmark = pytest.mark.faults


async def test_a_synchronous_replica_is_promoted_under_load_and_nothing_is_lost() -> None:
    servers.postgres_or_skip()
    with servers.running_pair(FAST, synchronous=True) as pair:
        async with load_on(f"{pair.url}&timeout=3") as load:
            await takes(1.0)
            await asyncio.to_thread(pair.primary.kill)
            await takes(0.5)
            await asyncio.to_thread(pair.promote)
            await asyncio.to_thread(_accept_alone, pair.replica.url)
            before = len(load.accepted)
            await load.goes_on()
            assert len(load.accepted) > before
            assert load.refused


def _accept_alone(url: str) -> None:
    """The new primary has no replica that a commit could wait for."""
    ask(url, "alter system set synchronous_standby_names = ''")
    ask(url, "select pg_reload_conf()")


async def test_a_full_disk_refuses_calls_and_nothing_is_half_written() -> None:
    servers.postgres_or_skip()
    with servers.running(FAST) as server, servers.small_disk(48) as disk:
        ask(server.url, f"create tablespace small location '{disk}'")
        ask(server.url, "create database app tablespace small")
        async with load_on(f"{server.url_of('app')}?timeout=3") as load:
            filler = disk / "filler"
            await asyncio.to_thread(_fill, filler)
            refused = load.refused
            # Tables grow until they need a new page.
            for _ in range(600):
                if load.refused > refused:
                    break
                await takes(0.05)
            assert load.refused > refused, "the disk was never full"
            await takes(1.0)
            filler.unlink()
            await load.goes_on()


def _fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(os.urandom(1 << 20)):
            pass
