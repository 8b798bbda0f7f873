"""Errors and statuses of gRPC: one table, in the code and in the guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from jobq import errors
from jobq.errors import JobqError
from jobq.rpc import status

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "server-api.md"


OF_RUNS = (
    errors.JobFailed,
    errors.JobCancelled,
    errors.PermissionDenied,
    errors.UnfitArguments,
    errors.UndecodableArguments,
    errors.UnstorableResult,
)
"""Errors of runs, in workers and waits: no call of the server ends with one."""


def documented() -> list[str]:
    """The rows that the guide should have."""
    rows = [
        f"| `{row.code.name}` | `{error.__name__}` | {row.when} |"
        for error, row in status.TABLE.items()
        if error not in OF_RUNS
    ]
    return rows + [f"| `{code.name}` | | {when} |" for code, when in status.OTHER_CODES.items()]


def test_the_guide_shows_the_table() -> None:
    page = GUIDE.read_text()
    missing = [row for row in documented() if row not in page]
    assert not missing, "add to docs/guide/server-api.md:\n" + "\n".join(missing)
    shown = [line for line in page.splitlines() if line.startswith(tuple(_begins()))]
    assert sorted(shown) == sorted(documented())


def _begins() -> list[str]:
    return [f"| `{code.name}` |" for code in StatusCode]


def _all_errors(kind: type[JobqError] = JobqError) -> list[type[JobqError]]:
    public = [each for each in kind.__subclasses__() if each.__module__ == "jobq.errors"]
    return public + [below for each in public for below in _all_errors(each)]


@pytest.mark.parametrize("error", _all_errors(), ids=lambda error: error.__name__)
def test_every_error_has_a_status(error: type[JobqError]) -> None:
    assert error in status.TABLE


class _Failed(grpc.RpcError, grpc.Call):
    """A call that failed, as a client sees it."""

    def __init__(self, code: StatusCode, details: str, error: str | None = None) -> None:
        self._code, self._details = code, details
        self._trailing = () if error is None else ((status.ERROR, error),)

    def code(self) -> StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing

    initial_metadata = trailing_metadata

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> float:
        return 0.0

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: object) -> bool:
        return False


def _without_arguments() -> list[type[JobqError]]:
    return [error for error in status.TABLE if error is not errors.JobFailed]


@pytest.mark.parametrize("error", _without_arguments(), ids=lambda error: error.__name__)
def test_an_error_survives_the_way_to_the_client(error: type[JobqError]) -> None:
    raised = error("what happened")
    failed = _Failed(status.code_of(raised), str(raised), status.name_of(raised))
    again = status.error_of(failed)
    assert type(again) is error
    assert str(again) == "what happened"


def test_a_status_without_a_name_is_an_error_of_its_kind() -> None:
    assert type(status.error_of(_Failed(StatusCode.NOT_FOUND, "x"))) is errors.JobNotFound
    assert type(status.error_of(_Failed(StatusCode.UNAVAILABLE, "x"))) is errors.StoreUnavailable
    assert type(status.error_of(_Failed(StatusCode.INTERNAL, "x"))) is errors.StoreUnavailable
    assert type(status.error_of(_Failed(StatusCode.OK, "x", "Nobody"))) is errors.StoreUnavailable


def test_a_subclass_has_the_status_of_its_base() -> None:
    class Narrower(errors.QueueFull):
        pass

    assert status.code_of(Narrower("x")) is StatusCode.RESOURCE_EXHAUSTED
    assert status.name_of(Narrower("x")) == "QueueFull"


def test_a_message_is_bounded_and_can_be_encoded() -> None:
    assert len(status.shortened("x" * 10_000)) == status.MAX_DETAILS
    assert status.shortened("a\udcffb") == "a?b"
