"""For your tests: queues in memory, a clock that you move, and `drain()`, which runs due jobs.

    @pytest.fixture
    async def jobs():
        async with testing.use(billing) as jobs:  # billing uses a new memory store in this block
            yield jobs

    async def test_a_receipt_is_sent_an_hour_after_the_charge(jobs):
        await charge.enqueue("acme", invoice=7)
        await jobs.drain(inline=True)  # raises what a handler raised
        sent = await jobs.assert_enqueued(send_receipt, invoice=7)
        assert sent.due_at == jobs.clock.now() + timedelta(hours=1)
        jobs.clock.advance(3600)
        assert await jobs.drain() == 1

In tests without an event loop: `with testing.use(billing) as jobs:`, then `jobs.sync.drain()`. To
call a handler that uses `current_job()` without a queue: `with testing.fake_job():`. The fixtures
of the pytest plugin are in `jobq_pytest`. `FakeWorker` is for tests of a jq-server, and needs the
extra `grpc`.
"""

from typing import TYPE_CHECKING, Any

from jobq.api.dependencies import override
from jobq.testing.clock import FakeClock
from jobq.testing.fake_job import FakeJob, fake_job
from jobq.testing.sandbox import Sandbox, SyncSandbox, queue, use

if TYPE_CHECKING:
    from jobq.testing.fake_worker import FakeWorker

__all__ = [
    "FakeClock",
    "FakeJob",
    "FakeWorker",
    "Sandbox",
    "SyncSandbox",
    "fake_job",
    "override",
    "queue",
    "use",
]


def __getattr__(name: str) -> Any:
    """Import FakeWorker when it is used: other tests need no gRPC."""
    if name == "FakeWorker":
        from jobq.testing.fake_worker import FakeWorker

        return FakeWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
