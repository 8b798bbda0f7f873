"""Policies are checked when they are made, and become data for the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from jobq.core.policies import Bucket, Cron, Every, Permissions, Rate, Retention, Retry, Unique
from jobq.core.records.jobs import JobSpec, QueueName, RetryData
from jobq.core.records.queues import RetentionData, Tokens, Window
from jobq.errors import ConfigError, InvalidJob

QUEUE = QueueName("t", "q")
TEMPLATE = JobSpec(queue=QUEUE, id="", name="digest", payload=b"[[],{}]")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Retry(-1), "max_retries=-1"),
        (lambda: Retry(True), "max_retries=True is not a whole number"),
        (lambda: Retry(base=-1), "Retry base=-1 is negative"),
        (lambda: Retry(factor=0.5), "Retry factor=0.5"),
        (lambda: Retry(jitter=1.5), "Retry jitter=1.5"),
        (lambda: Retry(cap=0), "Retry cap=0"),
        (lambda: Retry(base=7200), "base=7200 is above cap=3600"),
        (lambda: Retry(delays=[]), "delays is empty"),
        (lambda: Retry(delays=[1, -2]), r"delays\[1\]=-2"),
        (lambda: Retry(delays="12"), "delays='12'"),  # type: ignore[arg-type]
        (lambda: Retry(on=ValueError("x")), "is not an exception class"),  # type: ignore[arg-type]
        (lambda: Retry(give_up_on=(ValueError, int)), "give_up_on.*is not an exception class"),  # type: ignore[arg-type]
        (lambda: Retry.of("3"), "retry='3' is neither"),
        (lambda: Retry.of(True), "retry=True is neither"),
        (lambda: Unique(""), "Unique field ''"),
        (lambda: Unique(mode="throttle"), "needs period="),
        (lambda: Unique(mode="debounced"), "did you mean 'debounce'"),  # type: ignore[arg-type]
        (lambda: Unique(period=0), "Unique period=0"),
        (lambda: Unique.of("invoice"), "unique='invoice' is neither"),
    ],
)
def test_a_bad_job_policy_is_an_invalid_job(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rate(0, per=1), "Rate count=0"),
        (lambda: Rate(5, per=0), "Rate per=0"),
        (lambda: Bucket(0, refill=1), "Bucket capacity=0"),
        (lambda: Bucket(5, refill=0), "Bucket refill=0 is too small"),
        (lambda: Bucket(5, refill=float("nan")), "Bucket refill=nan"),
        (lambda: Every(0), "Every interval=0"),
        (lambda: Every(5, times=0), "Every times=0"),
        (lambda: Every(5, catch_up="some"), "Every catch_up='some'"),  # type: ignore[arg-type]
        (lambda: Every(5, start=datetime(2030, 1, 1)), "Every start=.*has no time zone"),
        (lambda: Cron("0 25 * * *"), "bad hour '25' at position 2"),
        (lambda: Cron("0 6 * * *", tz="Europe/Zurch"), "did you mean 'Europe/Zurich'"),
        (
            lambda: Cron(
                "0 6 * * *",
                start=datetime(2030, 1, 2, tzinfo=UTC),
                end=datetime(2030, 1, 1, tzinfo=UTC),
            ),
            "is before start",
        ),
        (lambda: Retention(completed=-1), "Retention completed=-1"),
        (lambda: Retention(count=-1), "Retention count=-1"),
        (lambda: Permissions(read="/tmp"), "Permissions read='/tmp' is not a list"),
        (lambda: Permissions(env=[""]), "Permissions env: ''"),
        (lambda: Permissions(memory="lots"), "Permissions memory='lots'"),
        (lambda: Permissions(network=1), "Permissions network=1"),  # type: ignore[arg-type]
        (lambda: Permissions(network=[0]), "port=0 is out of range"),
        (lambda: Permissions(network=["db.internal:5432"]), "restricts TCP ports, not hosts"),  # type: ignore[list-item]
        (lambda: Permissions(read=["data"]), "Permissions read: 'data' is not an absolute path"),
        (lambda: Permissions(run=["convert"]), "Permissions run: 'convert' is not an absolute"),
        (lambda: Permissions(env=["A=1"]), "Permissions env: 'A=1' is not the name"),
        (lambda: Permissions(memory="1M"), "Permissions memory='1M' is less than 64M"),
        (lambda: Permissions(files=3), "Permissions files=3 is out of range"),
        (lambda: Permissions(processes=-1), "Permissions processes=-1"),
        (lambda: Permissions(enforce="no"), "Permissions enforce='no'"),  # type: ignore[arg-type]
        (lambda: Permissions(cpu=0), "Permissions cpu=0"),
    ],
)
def test_a_bad_set_up_is_a_config_error(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(Retry(), "max_retries", 5)  # noqa: B010 - type checkers refuse it as well


def test_policies_of_the_same_values_are_equal() -> None:
    assert Retry(5, base=2) == Retry(5, base=timedelta(seconds=2))
    assert hash(Unique("a", "b")) == hash(Unique("a", "b"))


def test_a_retry_as_data_keeps_all_that_data_can_say() -> None:
    assert Retry.of(0).data == RetryData(max_retries=0, jitter=0.1)
    assert Retry(2, base=0.5, factor=3, cap=60, jitter=0.1, delays=[1, 2]).data == RetryData(
        max_retries=2, base_ms=500, factor=3.0, cap_ms=60_000, jitter=0.1, delays_ms=(1000, 2000)
    )


@pytest.mark.parametrize(
    "retry", [Retry(delays=lambda n, error: 1), Retry(on=ValueError), Retry(give_up_on=(KeyError,))]
)
def test_what_only_code_can_say_does_not_travel_with_a_call(retry: Retry) -> None:
    with pytest.raises(InvalidJob, match="cannot be stored with a job"):
        _ = retry.data


def test_errors_are_retried_by_class() -> None:
    retry = Retry(on=(OSError, ValueError), give_up_on=FileNotFoundError)
    assert retry.retries(ConnectionError())
    assert retry.retries(ValueError())
    assert not retry.retries(FileNotFoundError())
    assert not retry.retries(KeyError())


def test_rates_and_retention_become_what_a_store_keeps() -> None:
    assert Rate(100, per=60).data == Window(limit=100, per_ms=60_000)
    assert Bucket(10, refill=2).data == Tokens(capacity=10, refill=2.0)
    assert Retention().data == RetentionData()
    assert Retention(failed=None, count=None).data == RetentionData(failed_ms=None, count=None)


def test_unique_true_means_all_arguments() -> None:
    assert Unique.of(True) == Unique()
    assert Unique.of(False) is None
    assert Unique.of(None) is None


def test_schedules_become_specs() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    cron = Cron("@daily", tz="Europe/Zurich", start=start, times=3, catch_up="one").spec(
        QUEUE, "d", TEMPLATE
    )
    assert (cron.cron, cron.tz, cron.start_ms, cron.limit, cron.catch_up) == (
        "0 0 * * *",
        "Europe/Zurich",
        1_893_456_000_000,
        3,
        "one",
    )
    every = Every(timedelta(minutes=5), after_complete=True).spec(QUEUE, "e", TEMPLATE)
    assert (every.cron, every.every_ms, every.after_complete) == (None, 300_000, True)


def test_memory_is_bytes_or_a_size_with_its_unit() -> None:
    assert Permissions(memory="512M").memory == 512 * 2**20
    assert Permissions(memory="2 GiB").memory == 2 * 2**30
    assert Permissions(memory=2**27).memory == 2**27


def test_ports_are_sorted_and_an_empty_list_is_no_network() -> None:
    assert Permissions(network=[8080, 443, 443]).network == (443, 8080)
    assert Permissions(network=[]).network is False


def test_processor_time_is_whole_seconds_rounded_up() -> None:
    assert Permissions(cpu=1.2).cpu_ms == 2000
    assert Permissions(cpu=timedelta(seconds=3)).cpu_ms == 3000


def test_permissions_travel_to_a_child_as_they_are() -> None:
    given = Permissions(read=["/a"], network=[443], cpu=1, processes=2, enforce="best-effort")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=Permissions) == given
