"""Runs that wait and begin again: what a later pass finds of the earlier ones.

Pure; the lease brings it all. A handler that waits (for its children, for a signal) is started
again from its top. It then adds the same children and asks for the same signals, in the same order,
and must find what was there before instead of making it anew.
"""

from __future__ import annotations

import hashlib
from typing import Any

from jobq.core.checks import check_signal
from jobq.core.codec import get_codec
from jobq.core.commands import SendSignal
from jobq.core.control import WaitForChildren, WaitForSignal
from jobq.core.records import MAX_ID_LENGTH, Edge, Input, JobKey, Lease, QueueName
from jobq.errors import InvalidJob, WaitTimeout

CHILD = "$jobq.child "
"""A job's note to itself, kept as a signal: which job its n-th child is.

A cascading cancel goes by it until the job waits for its children, and a later pass finds a child
by it that was there already, under another id.
"""


def child_note(parent: JobKey, ordinal: int, child: JobKey) -> SendSignal:
    """The note that `child` is the parent's n-th."""
    return SendSignal(
        job=parent, name=f"{CHILD}{ordinal}", value=f"{child.queue.queue}\n{child.id}".encode()
    )


def noted_child(tenant: str, name: str, value: bytes) -> JobKey | None:
    """The child that a signal notes; None if it is another signal."""
    queue, found, id = (
        value.decode(errors="replace").partition("\n") if name.startswith(CHILD) else ("", "", "")
    )
    return JobKey(QueueName(tenant, queue), id) if found else None


def child_id(parent: Lease, queue: QueueName, ordinal: int) -> str:
    """The id of a run's n-th child: the same in every pass, another for every job, queue
    and life.
    """
    name = parent.id if parent.queue == queue else f"{parent.queue.queue}/{parent.id}"
    if parent.life:
        name = f"{name}~{parent.life}"  # a rerun begins anew: with the children of its last life it could only end the same
    id = f"{name}:{ordinal}"
    if len(id) <= MAX_ID_LENGTH:
        return id
    return f"{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}:{ordinal}"


class Children:
    """The children of one run: those it has added so far, and what is known of them."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._ended = {given.job: given for given in lease.inputs}
        self._noted: dict[int, JobKey] = {}
        for name, value in lease.signals:
            if (child := noted_child(lease.queue.tenant, name, value)) is not None:
                self._noted[int(name.removeprefix(CHILD))] = child
        self._count = 0
        self._ids: set[str] = set()
        self._added: dict[
            int, tuple[JobKey, Any]
        ] = {}  # by number, with the annotation of their results

    def next(self) -> int:
        """The number of the next child.

        Taken before anything is awaited, so that it is the same in every pass.
        """
        self._count += 1
        return self._count - 1

    def found(self, ordinal: int, child: JobKey) -> JobKey | None:
        """The job that an earlier pass added as this child, if it is known to be there without
        asking.
        """
        other = self._noted.get(ordinal, child)
        return other if other != child or child in self._ended else None

    def noted(self, ordinal: int, child: JobKey) -> bool:
        """Whether the job has a note already that this is its n-th child."""
        return self._noted.get(ordinal) == child

    def add(self, ordinal: int, child: JobKey, returns: Any) -> None:
        """It is one of those the run waits for.

        Results are delivered by id, so an id that is there already is refused.
        """
        if child.id in self._ids:
            raise InvalidJob(
                f"job {self._lease.id} ({self._lease.name}) has two children with the id {child.id!r}"
            )
        self._ids.add(child.id)
        self._added[ordinal] = child, returns

    def results(self) -> dict[str, Any]:
        """By id, in the order they were added, once all have ended: a result, None (`ignore`) or a
        Failure (`continue`).

        Until then it ends the run: raises WaitForChildren.
        """
        added = [
            self._added[ordinal] for ordinal in sorted(self._added)
        ]  # many at once may be accepted in any order
        if any(child not in self._ended for child, _ in added):
            raise WaitForChildren(tuple(Edge(child) for child, _ in added))
        return {child.id: _answer(self._ended[child], returns) for child, returns in added}


def _answer(given: Input, returns: Any) -> Any:
    if given.failure is not None:
        return given.failure
    return None if given.result is None else get_codec(given.codec).decode(given.result, returns)


class Inbox:
    """The signals a job has received, as one run takes them: each once, oldest first."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._seen: dict[str, int] = {}

    def take(self, name: str, timeout_ms: int | None) -> bytes:
        """The next value of that name.

        WaitTimeout where a wait of an earlier pass ended without one. If there is none it ends the
        run: raises WaitForSignal.
        """
        check_signal(name)
        received = [value for signal, value in self._lease.signals if signal == name]
        seen = self._seen.get(name, 0)
        if seen >= len(received):
            raise WaitForSignal(name, seen=seen, timeout_ms=timeout_ms)
        self._seen[name] = seen + 1
        if received[seen] == b"":
            raise WaitTimeout(
                f"job {self._lease.id} ({self._lease.name}) waited for signal {name!r} and it did not come in time"
            )
        return received[seen]
