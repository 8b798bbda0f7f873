"""The mailbox of a handle: where it learns that it should look again.

A writer reads from the tables which mailboxes to notify, and sends the notices after its commit. A
notice can be lost, so it never carries data that a handle relies on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from jobq.core.records.jobs import JobKey, JobSpec, QueueName, Signal, Topic

Address = tuple[int | str, ...]
"""Where a mailbox is reached: the columns in which a dialect stores that."""

_LATEST_MS = 10_000
"""Milliseconds that a `soon` notice may postpone a look at the most."""


MOST = 10_000
"""Workers that a handle remembers. A jq-server meets new names for as long as it runs."""


class Notice(NamedTuple):
    """A notice and the mailbox it goes to.

    `work`: wake the worker `name`. `soon`: wake it in as many milliseconds as `job` says. Otherwise
    a topic: `ended` or `noted` with the job's id as `name`, `cancel` with the worker as `name` and
    the job's id as `job`, or `log`.
    """

    address: Address
    kind: str
    tenant: str
    queue: str
    name: str
    job: str | None = None


class Mailbox:
    """Receives the notices of one handle, on its event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._wakes: dict[str, asyncio.Event] = {}
        self._topics: dict[Topic, set[asyncio.Queue[Signal]]] = {}

        self.has_work: Callable[[QueueName], Awaitable[bool]] | None = None
        """Asks whether there may be work in a queue, before a `soon` notice wakes a worker. None:
        it is not asked."""
        self._asking: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Receive no more notices."""

    def wake(self, worker: str) -> asyncio.Event:
        """The event that is set when there may be work for the worker. The caller clears it before
        it looks.

        The worker that slept the longest ago is forgotten if there are too many. If it still
        sleeps, it looks again when its time is over.
        """
        known = self._wakes.pop(worker, None)
        event = self._wakes[worker] = known or asyncio.Event()
        if len(self._wakes) > MOST:
            del self._wakes[next(iter(self._wakes))]
        return event

    def deliver(self, notice: Notice) -> None:
        """Receive a notice of this process. May be called from any thread."""
        # The loop may be closed: then the handle needs no notices.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.receive, notice)

    def wake_all(self) -> None:
        """Wake all workers that sleep on this handle. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake_all)

    @property
    def topics(self) -> list[Topic]:
        """The topics that somebody waits for."""
        return list(self._topics)

    def listeners(self, topic: Topic) -> int:
        """How many wait for this topic."""
        return len(self._topics.get(topic, ()))

    def signal_all(self) -> None:
        """Let all who wait look again, because notices may be lost."""
        self._wake_all()
        for topic, inboxes in self._topics.items():
            if topic.queue is not None:
                for inbox in inboxes:
                    inbox.put_nowait(Signal(topic.kind, topic.queue, topic.name))

    def _wake_all(self) -> None:
        for event in self._wakes.values():
            event.set()

    @contextlib.asynccontextmanager
    async def subscribed(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[Signal]]:
        """Yield the signals of these topics while the context lasts."""
        inbox: asyncio.Queue[Signal] = asyncio.Queue()
        for topic in topics:
            self._topics.setdefault(topic, set()).add(inbox)
        try:
            yield _drain(inbox)
        finally:
            for topic in topics:
                inboxes = self._topics[topic]
                inboxes.discard(inbox)
                if not inboxes:
                    del self._topics[topic]

    def _check_later(self, event: asyncio.Event, queue: QueueName) -> None:
        """The time of a `soon` notice has come: another worker may have done the work by now."""
        if self.has_work is None or event.is_set():
            event.set()
            return
        asking = self._loop.create_task(self._ask(self.has_work, event, queue))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    async def _ask(
        self,
        has_work: Callable[[QueueName], Awaitable[bool]],
        event: asyncio.Event,
        queue: QueueName,
    ) -> None:
        try:
            needed = await has_work(queue)
        except Exception:  # the worker that looks by itself finds out why
            needed = True
        if needed:
            event.set()

    def receive(self, notice: Notice) -> None:
        """Wake the worker or the listeners that a notice is for."""
        if notice.kind in ("work", "soon"):
            if (event := self._wakes.get(notice.name)) is None:
                return
            if notice.kind == "work":
                event.set()
            elif notice.job is not None and notice.job.isdecimal():  # a stranger can send one
                queue = QueueName(notice.tenant, notice.queue)
                delay_s = min(int(notice.job), _LATEST_MS) / 1000
                self._loop.call_later(delay_s, self._check_later, event, queue)
            return
        queue = QueueName(notice.tenant, notice.queue)
        if notice.kind == "cancel":
            topic, signal = Topic("cancel", None, notice.name), Signal("cancel", queue, notice.job)
        elif notice.kind == "ended":
            topic, signal = Topic("ended", queue, notice.name), Signal("ended", queue, notice.name)
        elif notice.kind == "noted":
            topic, signal = Topic("noted", queue, notice.name), Signal("noted", queue, notice.name)
        else:
            topic, signal = Topic("log", queue, None), Signal("log", queue, None)
        for inbox in self._topics.get(topic, ()):
            inbox.put_nowait(signal)


async def _drain(inbox: asyncio.Queue[Signal]) -> AsyncIterator[Signal]:
    while True:
        yield await inbox.get()


# Callers that wait for the end of a job which they are about to put.


class Watch(NamedTuple):
    """The jobs of a put whose ends its handle wants to be notified of, and the handle's mailbox."""

    address: Address
    jobs: frozenset[JobKey]

    def has(self, spec: JobSpec) -> bool:
        """Whether the handle wants to be notified of the end of this job."""
        return (spec.queue, spec.id) in self.jobs


class Expectations:
    """How many callers wait for the end of each job."""

    def __init__(self) -> None:
        self.callers: dict[JobKey, int] = {}

    @contextlib.asynccontextmanager
    async def expect(self, job: JobKey, box: Mailbox) -> AsyncIterator[AsyncIterator[None]]:
        """Yield once for each notice that the job has ended, while the context lasts."""
        self.callers[job] = self.callers.get(job, 0) + 1
        try:
            async with box.subscribed([Topic("ended", *job)]) as signals:
                yield _ends(signals)
        finally:
            self.callers[job] -= 1
            if not self.callers[job]:
                del self.callers[job]

    def watch(self, specs: Sequence[JobSpec], box: Callable[[], Mailbox]) -> Watch | None:
        """The jobs of a put whose ends are expected; None: there are none."""
        jobs = {JobKey(spec.queue, spec.id) for spec in specs} & self.callers.keys()
        return Watch(box().address, frozenset(jobs)) if jobs else None


async def _ends(signals: AsyncIterator[Signal]) -> AsyncIterator[None]:
    async for _ in signals:
        yield None
