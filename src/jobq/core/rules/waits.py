"""Runs that start over: what a later pass knows of waits, children and recorded steps. Pure.

A handler that waits (for children or a signal) starts again from the top. It then adds the same
children and waits for the same signals, in the same order. It must find those of the earlier pass
instead of creating new ones. All of that is in the lease.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from jobq.core.control import WaitForChildren, WaitForSignal
from jobq.core.records.commands import SendSignal
from jobq.core.records.jobs import (
    Edge,
    Input,
    JobKey,
    Lease,
    QueueName,
    Steps,
)
from jobq.core.values.checks import (
    MAX_ID_LENGTH,
    MAX_STEPS,
    check_signal,
    check_step,
    check_step_size,
    shown,
)
from jobq.core.values.codec import get_codec
from jobq.errors import InvalidJob, WaitTimeout

CHILD = "$jobq.child "
"""The prefix of a job's note to itself, stored as a signal: which job the child of a label is.

A cascading cancel follows these notes until the job waits for its children. A later pass finds a
child by its note if that child has another id.
"""

MAX_LABEL = 4 * MAX_ID_LENGTH
"""Characters of the label of a child: the name of a step, some of it escaped, and a number."""


def child_note(parent: JobKey, label: str, child: JobKey) -> SendSignal:
    """The note that `child` is the parent's child of that label."""
    return SendSignal(
        job=parent, name=f"{CHILD}{label}", value=f"{child.queue.queue}\n{child.id}".encode()
    )


def noted_child(tenant: str, name: str, value: bytes) -> JobKey | None:
    """The child that a signal notes, or None for any other signal."""
    queue, found, id = (
        value.decode(errors="replace").partition("\n") if name.startswith(CHILD) else ("", "", "")
    )
    return JobKey(QueueName(tenant, queue), id) if found else None


def child_id(parent: Lease, queue: QueueName, label: str) -> str:
    """The id of a run's child of that label: the same in every pass, and different for every job,
    queue and life.
    """
    name = parent.id if parent.queue == queue else f"{parent.queue.queue}/{parent.id}"
    if parent.life:
        # A rerun needs new children: with those of its last life it could only end the same way.
        name = f"{name}~{parent.life}"
    id = f"{name}:{label}"
    if len(id) <= MAX_ID_LENGTH:
        return id
    id = f"{_digest(name)}:{label}"
    return id if len(id) <= MAX_ID_LENGTH else f"{_digest(name)}:{_digest(label)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Children:
    """The children that one run has added so far, and what is known about them."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._ended = {given.job: given for given in lease.inputs}
        self._noted: dict[str, JobKey] = {}
        for name, value in lease.signals:
            if (child := noted_child(lease.queue.tenant, name, value)) is not None:
                self._noted[name.removeprefix(CHILD)] = child
        self._counts: Counter[str | None] = Counter()  # by step
        self._labels: dict[str, int] = {}  # in the order in which the run has asked for them
        self._ids: set[str] = set()
        # By label, with the annotation of the result.
        self._added: dict[str, tuple[JobKey, Any]] = {}

    def next(self, step: str | None = None) -> str:
        """The label of the next child: its number among the children of its step, or among those
        outside of steps.

        Call it before anything is awaited, so that the label is the same in every pass. A run that
        skips a step does not change the labels of other children.
        """
        n = self._counts[step]
        self._counts[step] += 1
        # A colon would let a job and its child make the same id.
        label = f"{n}" if step is None else f"{step.replace('%', '%25').replace(':', '%3A')}/{n}"
        self._labels[label] = len(self._labels)
        return label

    def found(self, label: str, child: JobKey) -> JobKey | None:
        """The job that an earlier pass added as this child, if it is known without asking the
        store.
        """
        other = self._noted.get(label, child)
        return other if other != child or child in self._ended else None

    def noted(self, label: str, child: JobKey) -> bool:
        """Whether the job already has a note that this is its child of that label."""
        return self._noted.get(label) == child

    def add_of_step(self, step: str, children: Iterable[JobKey]) -> None:
        """Add the children of a step that an earlier run has executed. Their results are delivered
        as plain values, because this run does not know their tasks.
        """
        for child in children:
            self.add(self.next(step), child, Any)

    def add(self, label: str, child: JobKey, returns: Any) -> None:
        """Add a child that the run waits for.

        Results are delivered by id, so a second child with the same id is refused.
        """
        if child.id in self._ids:
            raise InvalidJob(
                f"job {self._lease.id} ({self._lease.name}) has two children with the id "
                f"{child.id!r}: give each child an id of its own"
            )
        self._ids.add(child.id)
        self._added[label] = child, returns

    def results(self) -> dict[str, Any]:
        """Results by id, in the order the children were added, once all have ended.

        A value is a result, None (policy `ignore`) or a Failure (`continue`). Until all have ended
        it raises WaitForChildren, which ends the run.
        """
        # Children that are added concurrently may be accepted in any order.
        added = [self._added[label] for label in sorted(self._added, key=self._labels.__getitem__)]
        if any(child not in self._ended for child, _ in added):
            raise WaitForChildren(tuple(Edge(child) for child, _ in added))
        return {child.id: _delivered(self._ended[child], returns) for child, returns in added}


def _delivered(given: Input, returns: Any) -> Any:
    if given.failure is not None:
        return given.failure
    return None if given.result is None else get_codec(given.codec).decode(given.result, returns)


class Inbox:
    """The signals that a job has received. A run takes each one once, oldest first."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._seen: dict[str, int] = {}

    def take(self, name: str, timeout_ms: int | None) -> bytes:
        """The next value of that name. WaitTimeout if a wait of an earlier pass timed out.

        If there is none it raises WaitForSignal, which ends the run.
        """
        check_signal(name)
        received = [value for signal, value in self._lease.signals if signal == name]
        seen = self._seen.get(name, 0)
        if seen >= len(received):
            raise WaitForSignal(name, seen=seen, timeout_ms=timeout_ms)
        self._seen[name] = seen + 1
        if received[seen] == b"":
            raise WaitTimeout(
                f"job {self._lease.id} ({self._lease.name}) did not receive the signal {name!r} "
                "in time"
            )
        return received[seen]


# Steps of a job that are not repeated: what a run knows of the steps that earlier runs recorded.
#
# Pure. A store keeps each step as a name and bytes, and every lease has all steps of the job's
# life. Only the worker that holds the lease adds to them, so the worker can count them.


class StepRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a step has recorded."""

    n: int  # how many steps were recorded before it: their times may be the same
    result: bytes  # in the codec of the job
    attempt: int  # the run that executed it
    at_ms: int
    children: tuple[JobKey, ...] = ()  # the child jobs that it has added


pack_step = msgspec.msgpack.Encoder().encode
unpack_step = msgspec.msgpack.Decoder(StepRecord).decode


def readable(steps: Steps) -> list[tuple[str, StepRecord]]:
    """The steps that can be read, in the order in which they were recorded."""
    found = []
    for name, data in steps:
        try:
            found.append((name, unpack_step(data)))
        except msgspec.MsgspecError:
            continue
    return sorted(found, key=lambda step: step[1].n)


class RecordedSteps:
    """The steps of one job: those that earlier runs have recorded, and those of this run."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._recorded = dict(lease.steps)
        self._bytes = sum(len(name.encode()) + len(data) for name, data in lease.steps)
        self._begun: dict[str, object] = {}

    def __len__(self) -> int:
        return len(self._recorded)

    def begin(self, name: object) -> tuple[str, StepRecord | None]:
        """Begin a step. Returns its name, and its record if it need not be executed.

        InvalidJob if the name cannot be used, if this run has used it, or if the job has as many
        steps as it may have. Called before the step does anything.
        """
        name, mine = check_step(name), object()
        if self._begun.setdefault(name, mine) is not mine:
            raise InvalidJob(
                f"{self} has used the step name {shown(name)} twice in one run: give each step a "
                "name of its own, for example with the number of the item"
            )
        data = self._recorded.get(name)
        if data is None:
            self._check_count(len(self._begun.keys() | self._recorded.keys()))
            return name, None
        try:
            return name, unpack_step(data)
        except msgspec.MsgspecError as error:
            raise InvalidJob(
                f"{self}: the record of step {shown(name)} cannot be read ({error}), so it is not "
                "known what the step did. A rerun of the job repeats the step"
            ) from error

    def admit(self, steps: Steps) -> None:
        """Count steps that are about to be recorded.

        InvalidJob if they are more than a job may have, PayloadTooLarge if they are too large.
        """
        for name, data in steps:
            check_step(name)
            size = self._bytes + len(name.encode()) + len(data)
            check_step_size(name, size)
            self._check_count(len(self._recorded) + (name not in self._recorded))
            self._recorded[name], self._bytes = data, size

    def __str__(self) -> str:
        return f"job {self._lease.id} ({self._lease.name})"

    def _check_count(self, n: int) -> None:
        if n > MAX_STEPS:
            raise InvalidJob(
                f"{self} has more than {MAX_STEPS:,} steps: use current_job().save(…) for the "
                "progress of a loop, or split the job into children"
            )
