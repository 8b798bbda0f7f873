"""Every end of a run has one outcome."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobq.core.control import (
    RateLimited,
    Reject,
    RetryAfter,
    Snooze,
    WaitForChildren,
    WaitForSignal,
)
from jobq.core.policies import UNDECLARED, Retry
from jobq.core.records.failures import ReportedError
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Complete,
    Defer,
    Edge,
    Fail,
    Hold,
    JobKey,
    Lease,
    QueueName,
    Release,
    RetryData,
    RetryLater,
    SnoozeFor,
)
from jobq.core.rules import outcomes
from jobq.core.rules.decide import (
    Crashed,
    End,
    Raised,
    Released,
    Returned,
    TimedOut,
    Unknown,
    decide,
    policy_of,
)
from jobq.errors import InvalidJob, UndecodableArguments, UnfitArguments, UnstorableResult

QUEUE = QueueName("t", "q")
LEASE = Lease(
    queue=QUEUE,
    id="7",
    token="tok",
    life=0,
    name="charge",
    payload=b"[[],{}]",
    codec="json",
    attempt=2,
    failures=0,
    stalls=0,
    created_ms=0,
    started_ms=0,
    expires_ms=1000,
)


def decided(end: End, task: Retry | None = None, **changes: Any) -> AnyOutcome:
    lease = msgspec.structs.replace(LEASE, **changes)
    outcome = decide(lease, end, retry=task or Retry(), now_ms=5000, random=lambda: 0.5)
    assert (outcome.queue, outcome.id, outcome.token) == (QUEUE, "7", "tok")
    return outcome


def raised(error: BaseException, task: Retry | None = None, **changes: Any) -> AnyOutcome:
    return decided(Raised(error), task, **changes)


def test_a_returned_value_completes_the_job() -> None:
    outcome = decided(Returned(b"42"))
    assert isinstance(outcome, Complete)
    assert outcome.result == b"42"


def test_an_error_with_retries_left_is_retried_after_the_backoff() -> None:
    outcome = raised(ValueError("bad"), Retry(3, base=1, factor=2), failures=2)
    assert isinstance(outcome, RetryLater)
    assert outcome.delay_ms == 4000  # the third retry
    assert outcome.failure.reason == "error"
    assert (outcome.failure.type, outcome.failure.message) == ("ValueError", "bad")
    assert (outcome.failure.attempt, outcome.failure.at_ms) == (2, 5000)
    assert outcome.failure.fingerprint


def test_an_error_with_no_retries_left_fails_the_job() -> None:
    outcome = raised(ValueError("bad"), Retry(3), failures=3)
    assert isinstance(outcome, Fail)
    assert outcome.failure.reason == "error"


def test_no_retries_means_none() -> None:
    assert isinstance(raised(ValueError(), Retry(0)), Fail)


def test_a_policy_of_the_call_wins_over_that_of_the_task() -> None:
    assert isinstance(raised(ValueError(), Retry(5), retry=RetryData(max_retries=0)), Fail)
    outcome = raised(ValueError(), Retry(0), retry=RetryData(max_retries=1, base_ms=77))
    assert isinstance(outcome, RetryLater)
    assert outcome.delay_ms == 77


def test_the_default_of_a_queue_has_the_jitter_of_retry() -> None:
    for lease in (LEASE, msgspec.structs.replace(LEASE, default_retries=2)):
        policy = policy_of(lease, UNDECLARED)
        assert (policy.base_ms, policy.jitter) == (1000, 0.1)
    assert policy_of(LEASE, given := Retry(1, jitter=0)) is given


def test_an_error_the_policy_does_not_retry_fails_at_once() -> None:
    assert isinstance(raised(KeyError(), Retry(on=ValueError)), Fail)
    assert isinstance(raised(KeyError(), Retry(give_up_on=LookupError)), Fail)
    assert isinstance(raised(ValueError(), Retry(on=ValueError)), RetryLater)


def test_a_delay_function_that_gives_up_fails_the_job() -> None:
    assert isinstance(raised(ValueError(), Retry(delays=lambda n, error: None)), Fail)


def test_a_delay_function_that_fails_itself_costs_a_note_and_not_the_job() -> None:
    def broken(n: int, error: BaseException) -> float:
        raise ZeroDivisionError("oops")

    outcome = raised(ValueError("bad"), Retry(base=3, delays=broken))
    assert isinstance(outcome, RetryLater)
    assert outcome.delay_ms == 3000
    assert outcome.failure.message.startswith(
        "bad (and the function of Retry(delays=…) raised ZeroDivisionError"
    )


def test_retry_after_is_a_failure_with_a_chosen_delay() -> None:
    outcome = raised(Retry.after(30), Retry(1))
    assert isinstance(outcome, RetryLater)
    assert outcome.delay_ms == 30_000
    assert outcome.failure.reason == "error"
    assert isinstance(raised(Retry.after(30), Retry(1), failures=1), Fail)


def test_retry_after_is_retried_whatever_classes_the_policy_names() -> None:
    assert isinstance(
        raised(Retry.after(1), Retry(on=ValueError, give_up_on=RetryAfter)), RetryLater
    )


def test_retry_after_keeps_what_made_the_handler_ask_for_it() -> None:
    try:
        try:
            raise ConnectionError("refused")
        except ConnectionError:
            raise Retry.after(5)  # noqa: B904 - the implicit cause is what is tested
    except RetryAfter as error:
        outcome = raised(error)
    assert isinstance(outcome, RetryLater)
    assert (outcome.failure.type, outcome.failure.message) == ("ConnectionError", "refused")


def test_snooze_keeps_what_it_saved() -> None:
    outcome = raised(Snooze(60, saved={"page": 3}), failures=9)
    assert isinstance(outcome, SnoozeFor)
    assert (outcome.delay_ms, outcome.saved) == (60_000, b'{"page":3}')


def test_snooze_saves_in_the_codec_of_the_job() -> None:
    outcome = raised(Snooze(0, saved=[1]), codec="msgpack")
    assert isinstance(outcome, SnoozeFor)
    assert outcome.saved == b"\x91\x01"


def test_a_snooze_that_cannot_be_saved_fails_without_a_retry() -> None:
    outcome = raised(Snooze(1, saved=object()))
    assert isinstance(outcome, Fail)
    assert outcome.failure.type == "jobq.InvalidJob"


def test_a_rate_limit_holds_at_no_cost() -> None:
    outcome = raised(RateLimited(5), Retry(0))
    assert isinstance(outcome, Hold)
    assert outcome.delay_ms == 5000


def test_reject_fails_whatever_retries_are_left() -> None:
    outcome = raised(Reject("no such tenant"), Retry(9))
    assert isinstance(outcome, Fail)
    assert (outcome.failure.reason, outcome.failure.message) == ("rejected", "no such tenant")


def test_a_timeout_is_retried_like_an_error() -> None:
    outcome = decided(TimedOut(1.5))
    assert isinstance(outcome, RetryLater)
    assert (outcome.failure.reason, outcome.failure.type) == ("timeout", "TimeoutError")
    assert outcome.failure.message == "the run did not end within 1.5 s"
    assert isinstance(decided(TimedOut(1), Retry(give_up_on=TimeoutError)), Fail)
    assert isinstance(decided(TimedOut(1), Retry(1), failures=1), Fail)


def test_a_crash_of_its_process_is_retried_like_an_error() -> None:
    outcome = decided(Crashed("killed by signal 9"))
    assert isinstance(outcome, RetryLater)
    assert (outcome.failure.reason, outcome.failure.message) == ("crashed", "killed by signal 9")


def test_handing_back_costs_nothing() -> None:
    assert isinstance(decided(Released(), Retry(0)), Release)


@pytest.mark.parametrize(
    ("since_ms", "delay_ms"),
    [
        (None, 1000),
        (5000, 1000),
        (4000, 2000),
        (2000, 4000),
        (-10_000, 16_000),
        (-3_594_999, 30_000),
    ],
)
def test_an_unknown_task_is_put_off_by_a_second_that_doubles_up_to_thirty(
    since_ms: int | None, delay_ms: int
) -> None:
    outcome = decided(Unknown("chrage"), Retry(0), failures=3, unknown_ms=since_ms)
    assert isinstance(outcome, Defer)
    assert outcome.delay_ms == delay_ms


def test_a_task_that_no_worker_has_known_for_an_hour_fails_its_job() -> None:
    outcome = decided(Unknown("chrage"), unknown_ms=5000 - 3_600_000)
    assert isinstance(outcome, Fail)
    assert (outcome.failure.reason, outcome.failure.exhausted) == ("unknown", False)
    assert "no worker has known a task named 'chrage' for 1 h" in outcome.failure.message


@pytest.mark.parametrize(
    ("since_ms", "delay_ms"),
    [(None, 1000), (5000, 1000), (2000, 4000), (-100_000, 30_000), (-294_999, 30_000)],
)
def test_arguments_that_do_not_fit_are_put_off_in_the_same_way(
    since_ms: int | None, delay_ms: int
) -> None:
    error = UnfitArguments("charge(n): missing a required argument: 'n'")
    # The clock of `unknown` has run out, but this worker knows the task.
    outcome = raised(error, Retry(0), failures=3, unfit_ms=since_ms, unknown_ms=-(10**9))
    assert isinstance(outcome, Defer)
    assert (outcome.delay_ms, outcome.reason, outcome.text) == (delay_ms, "unfit", str(error))


@pytest.mark.parametrize("retry", [Retry(0), Retry(9), Retry(on=KeyError)])
def test_after_five_minutes_they_fail_the_job_whatever_retries_are_left(retry: Retry) -> None:
    outcome = raised(UnfitArguments("no n"), retry, unfit_ms=5000 - 300_000, unknown_ms=5000)
    assert isinstance(outcome, Fail)
    failure = outcome.failure
    assert (failure.reason, failure.message, failure.exhausted) == ("unfit", "no n", False)
    assert failure.type == "jobq.UnfitArguments"


def test_the_five_minutes_are_no_limit_for_a_worker_that_does_not_know_the_task() -> None:
    outcome = decided(Unknown("charge"), unfit_ms=5000 - 400_000, unknown_ms=4000)
    assert isinstance(outcome, Defer)
    assert (outcome.reason, outcome.delay_ms) == ("unknown", 2000)


def test_a_long_text_is_cut() -> None:
    outcome = raised(UnfitArguments("x" * 10_000))
    assert isinstance(outcome, Defer)
    assert len(outcome.text) == 500


@pytest.mark.parametrize(
    "error", [UndecodableArguments("not JSON"), UnstorableResult("result: no")]
)
def test_what_no_retry_can_mend_fails_at_once(error: Exception) -> None:
    outcome = raised(error, Retry(9))
    assert isinstance(outcome, Fail)
    assert (outcome.failure.reason, outcome.failure.message) == ("error", str(error))


@pytest.mark.parametrize(
    ("error", "retry", "failures", "exhausted"),
    [
        (ValueError("x"), Retry(2), 2, True),
        (ValueError("x"), Retry(0), 0, True),  # none were allowed: that is no other end
        (Retry.after(5), Retry(2), 2, True),
        (Reject("no"), Retry(2), 2, False),
        (ValueError("x"), Retry(2, give_up_on=ValueError), 2, False),
        (ValueError("x"), Retry(2, on=KeyError), 0, False),
        (ValueError("x"), Retry(2, delays=lambda n, error: None), 1, False),
    ],
)
def test_a_failure_says_whether_the_retries_ran_out(
    error: Exception, retry: Retry, failures: int, exhausted: bool
) -> None:
    outcome = raised(error, retry, failures=failures)
    assert isinstance(outcome, Fail)
    assert outcome.failure.exhausted is exhausted


def test_a_failure_that_is_retried_is_not_exhausted() -> None:
    for error in (ValueError("x"), Retry.after(5)):
        outcome = raised(error, Retry(2), failures=1)
        assert isinstance(outcome, RetryLater)
        assert not outcome.failure.exhausted


@pytest.mark.parametrize(
    ("stalls", "allowed", "exhausted"), [(1, 3, False), (3, 3, False), (4, 3, True), (1, 0, True)]
)
def test_a_stall_past_the_limit_is_exhausted(stalls: int, allowed: int, exhausted: bool) -> None:
    failure = outcomes.stall_failure(
        attempt=7, stalls=stalls, max_stalls=allowed, worker="w1", now_ms=5000
    )
    assert (failure.reason, failure.attempt, failure.worker, failure.at_ms) == (
        "stalled",
        7,
        "w1",
        5000,
    )
    assert failure.exhausted is exhausted


def test_waiting_for_children_blocks_and_leaves_what_was_saved() -> None:
    edges = (Edge(JobKey(QUEUE, "8")),)
    outcome = raised(WaitForChildren(edges), saved=b"1")
    assert isinstance(outcome, Block)
    assert (outcome.after, outcome.signal, outcome.saved) == (edges, None, None)


def test_waiting_for_a_signal_blocks_with_its_timeout() -> None:
    outcome = raised(WaitForSignal("paid", timeout_ms=500, saved=b"2"), saved=b"1")
    assert isinstance(outcome, Block)
    assert (outcome.signal, outcome.timeout_ms, outcome.saved) == ("paid", 500, b"2")


def test_a_wait_passes_a_handler_that_catches_exceptions() -> None:
    assert not issubclass(WaitForChildren, Exception)
    assert not issubclass(WaitForSignal, Exception)


@pytest.mark.parametrize("control", [RetryAfter, Snooze, RateLimited])
def test_a_negative_delay_is_refused_where_it_is_written(control: Any) -> None:
    with pytest.raises(InvalidJob, match="delay=-1 is negative"):
        control(-1)


def test_leaving_by_system_exit_is_a_failure_like_any_other() -> None:
    outcome = raised(SystemExit(1))
    assert isinstance(outcome, RetryLater)
    assert outcome.failure.type == "SystemExit"


def test_a_reported_failure_keeps_its_words_and_its_reason() -> None:
    error = ReportedError("IOError", "no route", "at send (mail.go:7)", reason="timeout")
    outcome = decided(Raised(error))
    assert isinstance(outcome, RetryLater)
    failure = outcome.failure
    assert (failure.reason, failure.type, failure.message) == ("timeout", "IOError", "no route")
    assert failure.traceback == "at send (mail.go:7)"


def test_a_reported_rejection_names_the_error_of_the_worker() -> None:
    error = Reject("no such user")
    error.__cause__ = ReportedError("NotFound", "no such user")
    outcome = decided(Raised(error))
    assert isinstance(outcome, Fail)
    assert (outcome.failure.reason, outcome.failure.type) == ("rejected", "NotFound")
