"""Steps of a job that are not repeated: what a run knows of the steps that earlier runs recorded.

Pure. A store keeps each step as a name and bytes, and every lease has all steps of the job's life.
Only the worker that holds the lease adds to them, so the worker can count them.
"""

from __future__ import annotations

import msgspec

from jobq.core.checks import MAX_STEPS, check_step, check_step_size, shown
from jobq.core.records import JobKey, Lease, Steps
from jobq.errors import InvalidJob


class StepRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a step has recorded."""

    n: int  # how many steps were recorded before it: their times may be the same
    result: bytes  # in the codec of the job
    attempt: int  # the run that executed it
    at_ms: int
    children: tuple[JobKey, ...] = ()  # the child jobs that it has added


pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(StepRecord).decode


def readable(steps: Steps) -> list[tuple[str, StepRecord]]:
    """The steps that can be read, in the order in which they were recorded."""
    found = []
    for name, data in steps:
        try:
            found.append((name, unpack(data)))
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
            return name, unpack(data)
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
