"""What a worker logs about its runs."""

from __future__ import annotations

import logging

import pytest

from jobq.core.policies import Retry
from jobq.engine.journal import Journal

from .kit import Bench


def about(caplog: pytest.LogCaptureFixture, id: str) -> list[logging.LogRecord]:
    """The lines about one job."""
    return [record for record in caplog.records if getattr(record, "job_id", None) == id]


async def test_a_run_is_logged_when_it_starts_and_when_it_ends(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "jobq.job")

    @bench.task
    async def work() -> int:
        return 1

    id = await bench.add("work")
    async with bench.worker():
        await bench.ended(id)
    start, end = about(caplog, id)
    assert (start.levelno, end.levelno) == (logging.DEBUG, logging.INFO)
    assert start.getMessage() == f"job {id} (work) of queue work started (attempt 1)"
    assert end.getMessage().startswith(f"job {id} (work) of queue work completed after 0.")
    facts = vars(end)
    assert (facts["queue"], facts["task"], facts["attempt"], facts["outcome"]) == (
        "work",
        "work",
        1,
        "completed",
    )
    assert facts["duration_ms"] >= 0


async def test_a_retry_is_a_warning_and_a_final_failure_an_error_with_its_traceback(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobq.job")

    @bench.task(retry=Retry(1, base=0))
    async def work() -> None:
        raise ValueError("no such card")

    id = await bench.add("work")
    async with bench.worker():
        await bench.ended(id)
    retried, failed = about(caplog, id)
    assert (retried.levelname, failed.levelname) == ("WARNING", "ERROR")
    assert "(attempt 1) and is retried in 0 s: ValueError: no such card" in retried.getMessage()
    assert "failed for good" in failed.getMessage()
    assert retried.exc_info is None
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], ValueError)
    assert "in work" in caplog.text  # the handler's own frame


async def test_an_error_cannot_forge_a_log_line(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.task(retry=Retry(1, base=0))
    async def work() -> None:
        raise ValueError("bad\n2026-01-01 INFO all is well\x1b[2J\x9b2J")

    id = await bench.add("work")
    async with bench.worker():
        await bench.ended(id)
    for record in about(caplog, id):
        message = record.getMessage()
        assert message.isprintable()
        assert r"bad\n2026-01-01 INFO all is well\x1b[2J\x9b2J" in message


async def test_runs_that_nobody_wants_to_read_of_are_not_written_down(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "jobq.job")
    logged: list[object] = []
    monkeypatch.setattr(Journal, "started", lambda self, run: logged.append(run))
    monkeypatch.setattr(Journal, "ended", lambda self, run, outcome: logged.append(run))

    @bench.task
    async def work() -> None: ...

    id = await bench.add("work")
    async with bench.worker():
        await bench.ended(id)
        assert logged == []
        caplog.set_level(
            logging.DEBUG, "jobq.job"
        )  # a level that changes is noticed with the next claim
        await bench.ended(await bench.add("work"))
    assert len(logged) == 2
