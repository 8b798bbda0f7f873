"""`testing.fake_job()`: handlers that use `current_job()` are called like any function."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from jobq import ConfigError, JobNotFound, Queue, current_job
from jobq.core.control import WaitForSignal
from jobq.testing import FakeJob, fake_job

shop = Queue("shop", "valkey://nowhere:1")


@shop.task
async def copy(pages: int) -> str:
    job = current_job()
    for page in range(job.saved or 0, pages):
        if job.cancelled:
            return "stopped"
        await job.progress(page)
        await job.log(f"page {page}")
    return f"{job.id} {job.attempt}"


@shop.task
def copy_blocking(pages: int) -> int:
    for page in range(pages):
        current_job().sync.progress(page)
        current_job().sync.log(f"page {page}")
    return pages


async def test_a_handler_finds_the_job_that_the_test_describes() -> None:
    with fake_job(id="j1", attempt=2, saved=1) as job:
        assert await copy(3) == "j1 2"
    assert (job.progress, job.lines) == ([1, 2], ["page 1", "page 2"])
    with pytest.raises(JobNotFound):
        current_job()


def test_a_plain_handler_uses_it_through_sync() -> None:
    with fake_job() as job:
        assert copy_blocking(2) == 2
    assert (job.progress, job.lines) == ([0, 1], ["page 0", "page 1"])


async def test_a_plain_handler_may_run_in_a_thread() -> None:
    with fake_job() as job:
        assert await asyncio.to_thread(copy_blocking, 1) == 1
    assert job.progress == [0]


async def test_a_test_can_ask_the_handler_to_stop() -> None:
    with fake_job() as job:
        job.cancelled = True
        assert await copy(3) == "stopped"


def test_every_attribute_can_be_given() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with fake_job(
        name="copy",
        queue="shop",
        tenant="acme",
        failures=2,
        max_retries=7,
        key="k",
        meta={"user": "ada"},
        lifespan={"db": 1},
        created_at=at,
    ):
        job = current_job()
        assert (job.name, job.queue, job.tenant, job.key) == ("copy", "shop", "acme", "k")
        assert (job.failures, job.max_retries, job.created_at) == (2, 7, at)
        assert (job.meta, job.lifespan(dict)) == ({"user": "ada"}, {"db": 1})


async def test_steps_and_checkpoints_are_those_of_a_real_job() -> None:
    with fake_job(steps={"charge": 700}, saved=3) as job:
        current = current_job()
        assert await current.step("charge", pytest.fail, "was done before") == 700
        assert await current.step("mail", str.upper, "sent") == "SENT"
        assert current.saved == 3
        await current.save(4)
        assert current.saved == 4
    assert (job.steps, job.saves) == ({"mail": "SENT"}, [4])


async def test_a_signal_that_is_given_arrives_and_another_ends_the_run() -> None:
    with fake_job(signals={"approved": {"by": "ada"}}):
        assert await current_job().wait_for_signal("approved") == {"by": "ada"}
        with pytest.raises(WaitForSignal):
            await current_job().wait_for_signal("approved")


async def test_what_needs_a_store_says_what_to_use_instead() -> None:
    with fake_job():
        with pytest.raises(ConfigError, match=r"drain\(inline=True\)"):
            await current_job().add(copy, 1)
        with pytest.raises(ConfigError, match=r"drain\(inline=True\)"):
            await current_job().wait_for_children()
        with pytest.raises(ConfigError, match="no store"):
            await current_job().complete_in(object())


async def test_two_tasks_have_their_own_fakes() -> None:
    async def one(id: str) -> FakeJob:
        with fake_job(id=id) as job:
            await asyncio.sleep(0)
            assert current_job().id == id
            await copy(1)
            return job

    first, second = await asyncio.gather(one("a"), one("b"))
    assert first.progress == second.progress == [0]


@pytest.mark.parametrize("wrong", [{"attempt": 0}, {"failures": -1}])
def test_a_job_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))), fake_job(**wrong):  # type: ignore[arg-type]
        pass
