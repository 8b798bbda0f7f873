"""A fake `current_job()`, to call a handler that uses it without a queue and without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from jobq.core.records.jobs import Checkpoint, Lease, LeaseRef, QueueName, Steps
from jobq.core.rules.waits import Children, Inbox, RecordedSteps, StepRecord, pack_step, unpack_step
from jobq.core.values.checks import check_int, to_epoch_ms
from jobq.core.values.codec import JSON
from jobq.errors import ConfigError
from jobq.executors.running import running
from jobq.stores.base import Store


class FakeJob:
    """The job that `current_job()` returns inside `fake_job(…)`, as the test sees it.

    `progress` has all values that the handler reported, `lines` the lines that it logged, `saves`
    the values that it passed to `save`, and `steps` the results of the steps that it executed. Set
    `cancelled` to ask the handler to stop.
    """

    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.lines: list[str] = []
        self.saves: list[Any] = []
        self.steps: dict[str, Any] = {}
        self.cancelled = False


@contextmanager
def fake_job(
    *,
    id: str = "fake",
    name: str = "fake",
    queue: str = "fake",
    tenant: str = "default",
    attempt: int = 1,
    failures: int = 0,
    max_retries: int = 3,
    key: str | None = None,
    meta: Mapping[str, str] | None = None,
    saved: Any = None,
    steps: Mapping[str, Any] | None = None,
    signals: Mapping[str, Any] | None = None,
    lifespan: Any = None,
    created_at: datetime | None = None,
) -> Iterator[FakeJob]:
    """Let `current_job()` return a fake in this block: `with fake_job(attempt=2) as job:`.

    The arguments are what `current_job()` has. `steps` has the results of steps that an earlier run
    recorded, by name. `signals` has the values that `wait_for_signal` returns, by name; a wait for
    any other signal ends the run, as in a worker. A fake job has no store, so it cannot add
    children: test those with `drain()`.
    """
    created_ms = to_epoch_ms(created_at or datetime.now(UTC), "created_at")
    lease = Lease(
        queue=QueueName(tenant, queue),
        id=id,
        token="",
        life=0,
        name=name,
        payload=JSON.encode_call((), {}),
        codec=JSON.name,
        attempt=check_int(attempt, "attempt", low=1, error=ConfigError),
        failures=check_int(failures, "failures", low=0, error=ConfigError),
        stalls=0,
        created_ms=created_ms,
        started_ms=created_ms,
        expires_ms=created_ms,
        key=key,
        saved=None if saved is None else JSON.encode(saved),
        signals=tuple((name, JSON.encode(value)) for name, value in (signals or {}).items()),
        steps=tuple(
            (
                name,
                pack_step(StepRecord(n=n, result=JSON.encode(value), attempt=1, at_ms=created_ms)),
            )
            for n, (name, value) in enumerate((steps or {}).items())
        ),
        meta=None if meta is None else dict(meta),
    )
    job = FakeJob()
    token = running.set(_FakeRun(lease, job, max_retries, lifespan))
    try:
        yield job
    finally:
        running.reset(token)


class _FakeRun:
    """A run of a job that no store has. What would need the store raises ConfigError."""

    task: asyncio.Task[None] | None = None
    unfinished: asyncio.Future[None] | None = None
    completing = False
    checkpoint: Checkpoint | None = None
    loop: asyncio.AbstractEventLoop | None = None  # nothing waits, so `.sync` needs none

    def __init__(self, lease: Lease, job: FakeJob, max_retries: int, lifespan: Any) -> None:
        self.lease = lease
        self.max_retries = max_retries
        self.inbox = Inbox(lease)
        self.steps = RecordedSteps(lease)
        self.children: Children = _NoChildren(lease)
        self.state = lifespan
        self._job = job

    @property
    def ref(self) -> LeaseRef:
        return LeaseRef(self.lease.queue, self.lease.id, self.lease.token)

    @property
    def cancelled(self) -> bool:
        return self._job.cancelled

    @property
    def now_ms(self) -> int:
        return self.lease.started_ms

    @property
    def store(self) -> Store:
        raise _without_store(self.lease, "has no store")

    def is_stored_at(self, url: str) -> bool:
        return False

    def check(self, step: str | None = None) -> None:
        """A fake lease never ends."""

    def encode(self, value: Any, what: str) -> bytes:
        return JSON.encode(value)

    def decode(self, data: bytes) -> Any:
        return JSON.decode(data)

    async def note(self, progress: bytes | None, lines: tuple[str, ...]) -> None:
        if progress is not None:
            self._job.progress.append(JSON.decode(progress))
        self._job.lines.extend(lines)

    async def keep(self, *, saved: bytes | None = None, steps: Steps = ()) -> None:
        if saved is not None:
            self._job.saves.append(JSON.decode(saved))
            self.checkpoint = Checkpoint(saved, len(self._job.saves))
        for name, record in steps:
            self._job.steps[name] = JSON.decode(unpack_step(record).result)


class _NoChildren(Children):
    """The children of a fake job: there can be none."""

    def next(self, step: str | None = None) -> str:
        raise _without_store(self._lease, "cannot have children")

    def results(self) -> dict[str, Any]:
        raise _without_store(self._lease, "cannot have children")


def _without_store(lease: Lease, what: str) -> ConfigError:
    return ConfigError(
        f"fake_job: job {lease.id!r} {what}; enqueue the job in a sandbox and run it with "
        "drain(inline=True) instead"
    )
