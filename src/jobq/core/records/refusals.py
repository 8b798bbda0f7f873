"""The errors with which a store refuses a call: the same words on every store.

Each function returns the error, and the store raises it. Errors about options, names and payloads,
which are found before a store is called, are in `core.values.checks`.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobq.core.records.jobs import JobKey, JobSpec, Mode, QueueName
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.core.values.checks import shown
from jobq.errors import ConfigError, InvalidJob

# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


def wrong_mode(mode: Mode, spec: JobSpec) -> ConfigError:
    """A job with a key in a plain queue, or without one in a keyed queue."""
    where = f"queue {spec.queue.queue!r} is {mode}, and job {spec.id!r} ({spec.name}) has"
    if mode == "keyed":
        return ConfigError(f"{where} no key: pass one with key=…")
    return ConfigError(f"{where} the key {spec.key!r}: use a queue with mode='keyed'")


def too_costly(spec: JobSpec, capacity: int) -> InvalidJob:
    """A job that costs more than the bucket that pays for it can hold."""
    bucket = f"the bucket of queue {spec.queue.queue!r} holds at most {capacity}"
    return InvalidJob(
        f"job {spec.id!r} ({spec.name}) costs {spec.cost}, and {bucket}, so the job could never "
        "start: lower cost=, or raise the capacity of the bucket"
    )


def unknown_child(id: str, child: JobKey) -> InvalidJob:
    """A job that waits for a job that does not exist.

    A job of another tenant is reported in the same way, so that nothing about it is disclosed.
    """
    return InvalidJob(
        f"job {id!r} waits for job {child.id!r} of queue {child.queue.queue!r}, "
        "which does not exist: enqueue that one first, or add both to a flow"
    )


def empty_flow(flow: str) -> InvalidJob:
    """A call of a flow without jobs."""
    return InvalidJob(
        f"flow {flow!r}: the call has no jobs; pass the last jobs of the flow to submit it"
    )


def swept_flow(flow: str) -> InvalidJob:
    """The last call of a flow, after the flow was swept."""
    return InvalidJob(
        f"flow {flow!r} was not submitted within an hour and has been removed: "
        "submit it again under another id"
    )


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


def other_mode(queue: QueueName, stored: Mode, config: QueueConfig) -> ConfigError:
    """A declaration with a mode that differs from the stored one."""
    differ = f"is {stored} in the store and {config.mode} in this program"
    return ConfigError(
        f"queue {queue.queue!r} {differ}: use another name, or obliterate the queue first"
    )


def other_settings(
    queue: QueueName, differences: Mapping[str, tuple[object, object]]
) -> ConfigError:
    """A queue that is to be created and exists with other settings (`queues.differences`)."""
    listed = "; ".join(
        f"{name} is {'not set' if stored is None else stored}, not {wanted}"
        if wanted is not None
        else f"{name} is {stored}"
        for name, (stored, wanted) in differences.items()
    )
    return ConfigError(
        f"queue {queue.queue!r} exists with other settings, and nothing was changed: {listed}"
    )


def other_partitions(queue: QueueName, stored: int) -> ConfigError:
    """A declaration with a number of partitions that differs from the stored one."""
    return ConfigError(
        f"queue {queue.queue!r} has {stored} partitions in the store: "
        "use that number or another name, or obliterate the queue first"
    )


def no_partitions(queue: QueueName, wanted: int) -> ConfigError:
    """A declaration of partitions in a store that has none."""
    return ConfigError(
        f"queue {queue.queue!r}: partitions={wanted} needs Valkey, and a queue of this "
        "store has one partition: leave partitions= out"
    )


def other_limits(
    queue: QueueName, version: int, stored: Limits | str, declared: Limits | None
) -> ConfigError:
    """A declaration with limits that differ from the stored ones under the same version."""
    differ = (
        f"has other limits in the store under limits_version={version} "
        f"(stored {stored}, declared {declared})"
    )
    return ConfigError(f"queue {queue.queue!r} {differ}: raise limits_version to change them")


def has_active_jobs(queue: str, active: int) -> ConfigError:
    """An obliterate without force while jobs are active."""
    return ConfigError(
        f"queue {queue!r} has {active} active jobs: stop its workers first, or use force=True"
    )


def not_ended(state: State) -> ConfigError:
    """A purge of a state that is not an ended one."""
    return ConfigError(
        f"{state} jobs have not ended: only completed, failed or cancelled jobs can be purged"
    )


# ── handles ───────────────────────────────────────────────────────────────────────────────────────


def not_open() -> RuntimeError:
    """A call of a handle that is not open: a mistake of the program, not a state of the store."""
    return RuntimeError(
        "this store is not open: use `async with open_store(url) as store`,"
        " or await store.migrate()"
    )


# ── reads ─────────────────────────────────────────────────────────────────────────────────────────


def no_cursor(cursor: str) -> InvalidJob:
    """A cursor that does not come from a page of this listing."""
    return InvalidJob(
        f"{shown(cursor)} is not a cursor of this listing: use the cursor of the last page"
    )


def not_divided() -> InvalidJob:
    """`Store.skip` of a listing that begins with the oldest jobs."""
    return InvalidJob("only a listing with the newest jobs first can be divided")


def no_position(after: str) -> InvalidJob:
    """A position that does not come from an event log."""
    return InvalidJob(
        f"{shown(after)} is not a position in an event log: "
        "use the position of an event, or '0' for the oldest one kept"
    )
