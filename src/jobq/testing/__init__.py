"""For your tests: queues in memory, a clock that you move, and `drain()`, which runs due jobs.

    @pytest.fixture
    async def jobs():
        async with testing.use(billing) as jobs:  # billing uses a new memory store in this block
            yield jobs

    async def test_a_receipt_is_sent_an_hour_after_the_charge(jobs):
        await charge.enqueue("acme", invoice=7)
        await jobs.drain()
        sent = await jobs.assert_enqueued(send_receipt, 7)
        assert sent.due_at == jobs.clock.now() + timedelta(hours=1)
        jobs.clock.advance(3600)
        assert await jobs.drain() == 1

In tests without an event loop: `with testing.use(billing) as jobs:`, then `jobs.sync.drain()`.
"""

from jobq.api.dependencies import override
from jobq.testing.clock import FakeClock
from jobq.testing.sandbox import Sandbox, SyncSandbox, queue, use

__all__ = ["FakeClock", "Sandbox", "SyncSandbox", "override", "queue", "use"]
