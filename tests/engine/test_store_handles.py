"""One store handle per store and event loop, closed with its last user."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jobq.client.connection import release_handle, shared_handle
from jobq.errors import ConfigError, JobqError

from .kit import Bench


async def test_those_who_ask_for_one_place_share_a_handle(url: str) -> None:
    first, second = await asyncio.gather(shared_handle(url), shared_handle(url))
    assert first is second
    await release_handle(first)
    bench = Bench(second)
    await bench.add("work")  # still open for the other
    await release_handle(second)
    third = await shared_handle(url)
    assert third is not first
    await release_handle(third)


async def test_a_handle_that_was_given_back_is_closed(url: str) -> None:
    store = await shared_handle(url)
    await release_handle(store)
    with pytest.raises((JobqError, RuntimeError), match=r"not open|closed"):
        await Bench(store).add("work")
    await release_handle(store)  # no longer ours: nothing happens


async def test_another_clock_means_another_handle(url: str) -> None:
    def clock() -> int:
        return 1_700_000_000_000

    plain, clocked = await shared_handle(url), await shared_handle(url, clock)
    assert plain is not clocked
    assert await shared_handle(url, clock) is clocked
    for store in (plain, clocked, clocked):
        await release_handle(store)


async def test_another_event_loop_means_another_handle(url: str) -> None:
    here = await shared_handle(url)

    async def there() -> bool:
        other = await shared_handle(url)
        await Bench(other).add("work")
        await release_handle(other)
        return other is not here

    assert await asyncio.to_thread(lambda: asyncio.run(there()))
    await release_handle(here)


async def test_a_store_that_cannot_be_opened_fails_all_callers_and_is_tried_again(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/missing/jobs.db"
    results = await asyncio.gather(shared_handle(url), shared_handle(url), return_exceptions=True)
    assert all(isinstance(result, ConfigError) for result in results)
    (tmp_path / "missing").mkdir()
    await release_handle(await shared_handle(url))


async def test_handles_of_many_threads_come_and_go_at_once(url: str) -> None:
    async def open_and_close(times: int) -> None:
        for _ in range(times):
            await release_handle(await shared_handle(url))

    keep = await shared_handle(url)
    await asyncio.gather(
        *(asyncio.to_thread(lambda: asyncio.run(open_and_close(20))) for _ in range(4))
    )
    assert await shared_handle(url) is keep
    for store in (keep, keep):
        await release_handle(store)
