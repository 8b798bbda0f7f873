"""What raises between the claim and the settling of a run: each costs its own run only."""

from __future__ import annotations

import logging
import math
from typing import Any, get_args

import pytest

from jobq.core.policies import Retry
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import AnyOutcome, JobKey, RetryData
from jobq.core.records.states import State
from jobq.core.rules.new_jobs import Checked
from jobq.engine import runner
from jobq.engine.handler import BatchSize
from jobq.engine.journal import _OUTCOMES
from jobq.engine.service import Outage, on_outage

from .kit import Bench, Gate, eventually


async def add_undecidable(bench: Bench, name: str, *args: Any) -> str:
    """Put a job whose retry policy is none, past the check that refuses it. Returns its id."""
    spec = bench.spec(name, *args, retry=RetryData(factor=math.nan))
    (stored,) = await (await bench.store()).put(Checked([spec]))
    return stored.id


async def test_a_policy_that_is_none_fails_its_job_and_frees_its_slot(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.task
    async def breaks() -> None:
        raise ValueError("of the handler")

    @bench.task
    async def works() -> str:
        return "done"

    id = await add_undecidable(bench, "breaks")
    async with bench.worker(concurrency=1) as worker:
        record = await bench.ended(id)
        assert (await bench.ended(await bench.add("works"))).state is State.COMPLETED
        assert not worker._stations[0].runner.held
    assert record.state is State.FAILED
    assert record.failure is not None
    assert record.failure.type == "Unreadable"  # such a record is shown as damaged
    assert "could not be decided" in record.failure.message
    assert "could not handle its run" in caplog.text


async def test_one_run_of_a_batch_that_cannot_be_decided_costs_no_other(bench: Bench) -> None:
    async def handle(items: list[str]) -> list[Any]:
        return [ValueError(item) if item == "bad" else item for item in items]

    bench.register(handle, batch=BatchSize(3))
    bad = await add_undecidable(bench, "handle", "bad")
    good = [await bench.add("handle", "a"), await bench.add("handle", "b")]
    async with bench.worker(concurrency=3):
        assert (await bench.ended(bad)).state is State.FAILED
        for id in good:
            assert (await bench.ended(id)).state is State.COMPLETED


async def test_a_decision_that_always_raises_fails_jobs_and_stops_no_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.task
    async def breaks(n: int) -> None:
        raise ValueError(n)

    @bench.task
    async def works() -> None: ...

    def raises(*args: object, **options: object) -> None:
        raise RuntimeError("no decision")

    monkeypatch.setattr(runner, "decide", raises)
    ids = await bench.add_many("breaks", 5)
    async with bench.worker(concurrency=2):
        for id in ids:
            assert (await bench.ended(id)).state is State.FAILED
        assert (await bench.ended(await bench.add("works"))).state is State.COMPLETED


class _Refuses(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter of the application")


async def test_a_log_that_always_raises_changes_no_outcome(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    @bench.task(retry=Retry(1, base=0))
    async def breaks() -> None:
        raise ValueError

    @bench.task
    async def works() -> None: ...

    log, refuses = logging.getLogger("jobq.job"), _Refuses()
    log.addFilter(refuses)
    try:
        id = await bench.add("breaks")
        async with bench.worker(concurrency=1):
            record = await bench.ended(id)
            assert (await bench.ended(await bench.add("works"))).state is State.COMPLETED
    finally:
        log.removeFilter(refuses)
    assert (record.failures, record.state) == (2, State.FAILED)  # it was retried
    assert "a filter of the application" in capsys.readouterr().err


def test_an_outage_is_noted_whatever_listens() -> None:
    def raises(error: BaseException) -> None:
        raise RuntimeError("of the listener")

    token = on_outage.set(raises)
    try:
        outage = Outage("something")
    finally:
        on_outage.reset(token)
    assert outage.failed(ValueError()) > 0
    outage.over()


async def test_a_run_that_was_cancelled_is_logged_as_cancelled(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobq.job")
    gate = Gate()

    @bench.task
    async def stops() -> None:
        await gate()

    @bench.task
    async def breaks() -> None:
        try:
            await gate()
        finally:
            raise ValueError("in its cleanup")

    ids = [await bench.add("stops"), await bench.add("breaks")]
    async with bench.worker():
        await eventually(lambda: gate.inside == 2)
        await (await bench.store()).alter([Cancel(job=JobKey(bench.qname, id)) for id in ids])
        for id in ids:
            assert (await bench.ended(id)).state is State.CANCELLED
    lines = {vars(r)["job_id"]: r for r in caplog.records if "outcome" in vars(r)}
    assert [vars(lines[id])["outcome"] for id in ids] == ["cancelled", "cancelled"]
    assert [lines[id].levelname for id in ids] == ["INFO", "WARNING"]
    assert "cancelled after" in lines[ids[0]].getMessage()
    assert "ValueError: in its cleanup" in lines[ids[1]].getMessage()
    assert "retried" not in caplog.text


async def test_a_released_run_is_logged_as_released(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobq.job")
    gate = Gate()

    @bench.task
    async def stops() -> None:
        await gate()

    id = await bench.add("stops")
    async with bench.worker(drain=0):
        await eventually(lambda: gate.inside == 1)
    (line,) = [r for r in caplog.records if "outcome" in vars(r)]
    assert (vars(line)["job_id"], vars(line)["outcome"]) == (id, "released")


def test_the_journal_names_every_outcome() -> None:
    assert set(_OUTCOMES) == set(get_args(AnyOutcome))
