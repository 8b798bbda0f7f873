"""Records name jobq's own errors by their public names, and old records are read as such."""

from __future__ import annotations

import msgspec
import pytest

import jobq
from jobq.core.records.criteria import Criteria
from jobq.core.records.failures import describe, fingerprint
from jobq.core.records.jobs import Failure, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.core.values.error_names import former_name, public_name
from jobq.executors.command import CommandFailed
from jobq.operations.failures import cause

PUBLIC = [
    value
    for name in jobq.__all__
    if isinstance(value := getattr(jobq, name), type) and issubclass(value, BaseException)
]
FORMER = [
    ("jobq.core.control.Reject", "jobq.Reject"),
    ("jobq.core.control.RetryAfter", "jobq.RetryAfter"),
    ("jobq.core.decide.ProcessCrashed", "jobq.ProcessCrashed"),
    ("jobq.errors.LeaseLost", "jobq.LeaseLost"),
    ("jobq.executors.command.CommandFailed", "jobq.CommandFailed"),
]
OLD = msgspec.msgpack.encode(["rejected", "jobq.core.control.Reject", "out of paper"])
"""A failure as a store may have it."""


@pytest.mark.parametrize("error", PUBLIC)
def test_a_public_error_is_stored_by_its_public_name(error: type[BaseException]) -> None:
    made = error.__new__(error)
    assert describe(made).type == f"jobq.{error.__name__}"


@pytest.mark.parametrize(("former", "name"), FORMER)
def test_each_name_has_a_former_one(former: str, name: str) -> None:
    assert (public_name(former), former_name(name)) == (name, former)
    assert (public_name(name), former_name(former)) == (name, former)


@pytest.mark.parametrize(
    "type",
    ["ValueError", "Expired", "json.decoder.JSONDecodeError", "jobqueue.errors.Full", "jobq", ""],
)
def test_names_of_others_stay_as_they_are(type: str) -> None:
    assert (public_name(type), former_name(type)) == (type, type)


def test_an_old_record_is_read_with_the_public_name() -> None:
    assert msgspec.msgpack.decode(OLD, type=Failure).type == "jobq.Reject"


@pytest.mark.parametrize(
    ("error", "digest"),
    [
        (jobq.Reject("no"), "b0924a642383"),
        (jobq.LeaseLost("job 7"), "aed4afe344fa"),
        (CommandFailed("exit 3"), "08ee4791b285"),
        (ValueError("x"), "d6b48fd8ec09"),
    ],
)
def test_fingerprints_are_those_of_old_records(error: Exception, digest: str) -> None:
    assert fingerprint(error) == digest


@pytest.mark.parametrize(
    "failure", [OLD, msgspec.msgpack.encode(["rejected", "jobq.Reject", "out of paper"])]
)
@pytest.mark.parametrize(
    ("error", "matches"),
    [
        ("jobq.Reject", True),
        ("jobq.core.control.Reject", True),
        ("jobq.core.control.*", True),
        ("jobq.core.control.Reject: out*", True),
        ("jobq.Reject: out*", True),
        ("jobq.errors.*", False),
        ("jobq.LeaseLost", False),
    ],
)
def test_old_and_new_records_match_by_either_name(
    failure: bytes, error: str, matches: bool
) -> None:
    assert (Criteria(error=error).verdict(failed(failure)) == "match") is matches


def test_old_and_new_records_without_a_fingerprint_have_one_cause() -> None:
    new = msgspec.msgpack.encode(Failure(reason="rejected", type="jobq.Reject", message="no"))
    assert cause(failed(OLD)) == cause(failed(new))


def failed(failure: bytes) -> JobRecord:
    return JobRecord(
        queue=QueueName("t", "q"),
        id="1",
        name="print",
        state=State.FAILED,
        payload=b"",
        codec="json",
        failure=msgspec.msgpack.decode(failure, type=Failure),
    )
