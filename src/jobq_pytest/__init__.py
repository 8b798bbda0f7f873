"""The pytest plugin of jobq: fixtures for tests of code that enqueues jobs and handles them.

pytest loads this module in every project that has jobq installed. The module is outside of the
package `jobq` and imports it only when a fixture is used, so that a project that does not use the
fixtures pays nothing for them.

    # pyproject.toml
    [tool.pytest.ini_options]
    jobq_queues = ["shop.jobs:billing", "shop.jobs:mail"]

    async def test_a_charge_sends_a_receipt(jobq_sandbox):
        await charge.enqueue("acme", 7)
        await jobq_sandbox.drain(inline=True)
        await jobq_sandbox.assert_enqueued(send_receipt, 7)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jobq import Queue
    from jobq.testing import FakeClock, FakeJob, Sandbox

__all__ = ["jobq_clock", "jobq_job", "jobq_queues", "jobq_sandbox"]

INI = "jobq_queues"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option."""
    parser.addini(
        INI,
        "the queues of jobq_sandbox, as module:name: each test has them in a memory store",
        type="linelist",
        default=[],
    )


@pytest.fixture
def jobq_queues(request: pytest.FixtureRequest) -> Sequence[Queue]:
    """The queues of `jobq_sandbox`: those of the ini option. Override it in your conftest.py."""
    import pkgutil

    from jobq import Queue

    addresses: list[str] = request.config.getini(INI)
    queues = [pkgutil.resolve_name(address) for address in addresses]
    if not queues:
        raise pytest.UsageError(
            f'jobq_sandbox has no queues: set {INI} = ["package.module:queue"] in the pytest '
            "configuration, or override the fixture jobq_queues"
        )
    for address, queue in zip(addresses, queues, strict=True):
        if not isinstance(queue, Queue):
            raise pytest.UsageError(f"{INI}: {address} is a {type(queue).__name__}, not a Queue")
    return queues


@pytest.fixture
def jobq_clock() -> FakeClock:
    """The clock of `jobq_sandbox`, which stands still until the test moves it."""
    from jobq.testing import FakeClock

    return FakeClock()


@pytest.fixture
def jobq_sandbox(jobq_queues: Sequence[Queue], jobq_clock: FakeClock) -> Iterator[Sandbox]:
    """The queues in a new memory store, for async tests and, through `.sync`, for others."""
    from jobq.testing import use

    with use(*jobq_queues, clock=jobq_clock) as sandbox:
        yield sandbox


@pytest.fixture
def jobq_job() -> Iterator[FakeJob]:
    """A fake `current_job()`, to call a handler directly."""
    from jobq.testing import fake_job

    with fake_job() as job:
        yield job
