"""Why a store refuses a call, in words: the same on every store.

Each function returns the error; the store raises it. What is refused before a store is asked
(options, names, payloads) has its words in `core.checks`.
"""

from __future__ import annotations

from jobq.core.checks import shown
from jobq.core.queues import Limits, QueueConfig
from jobq.core.records import JobKey, JobSpec, Mode, QueueName
from jobq.core.states import State
from jobq.errors import ConfigError, InvalidJob

# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


def wrong_mode(mode: Mode, spec: JobSpec) -> ConfigError:
    """A job with a key in a plain queue, or one without in a keyed queue."""
    where = f"queue {spec.queue.queue!r} is {mode} and job {spec.id!r} ({spec.name}) has"
    if mode == "keyed":
        return ConfigError(f"{where} no key: give it one with key=…")
    return ConfigError(f"{where} the key {spec.key!r}: use a queue with mode='keyed'")


def too_costly(spec: JobSpec, capacity: int) -> InvalidJob:
    """A job that costs more than the bucket that pays for it can hold."""
    bucket = f"the bucket of queue {spec.queue.queue!r} holds {capacity}"
    return InvalidJob(f"job {spec.id!r} costs {spec.cost}, and {bucket}: it could never start")


def unknown_child(id: str, child: JobKey) -> InvalidJob:
    """A job that waits for one that is not there.

    Another tenant's job is not there as far as it may know.
    """
    return InvalidJob(
        f"job {id!r} waits for {child.id!r} of queue {child.queue.queue!r}, which does not exist"
    )


def empty_flow(flow: str) -> InvalidJob:
    """A call of a flow that brings no jobs."""
    return InvalidJob(
        f"flow {flow!r}: a call without jobs; the last members of a flow are what submits it"
    )


def swept_flow(flow: str) -> InvalidJob:
    """The last call of a flow that came after the sweep."""
    return InvalidJob(
        f"flow {flow!r} was begun more than an hour ago and has been swept: submit it again under another id"
    )


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


def other_mode(queue: QueueName, stored: Mode, config: QueueConfig) -> ConfigError:
    """A declaration with another mode than the stored one."""
    differ = f"is {stored} in this store, and {config.mode} in this program"
    return ConfigError(f"queue {queue.queue!r} {differ}: use another name, or obliterate it")


def other_partitions(queue: QueueName, stored: int) -> ConfigError:
    """A declaration with another number of partitions than the stored one."""
    return ConfigError(
        f"queue {queue.queue!r} has {stored} partitions in this store: use another name, or obliterate it"
    )


def no_partitions(queue: QueueName, wanted: int) -> ConfigError:
    """A declaration of partitions in a store that has none."""
    return ConfigError(
        f"queue {queue.queue!r}: partitions={wanted} is for Valkey; this store has one partition"
    )


def other_limits(
    queue: QueueName, version: int, stored: Limits | str, declared: Limits | None
) -> ConfigError:
    """A declaration with other limits under the stored version."""
    differ = (
        f"has other limits under limits_version={version} (stored {stored}, declared {declared})"
    )
    return ConfigError(f"queue {queue.queue!r} {differ}: raise limits_version to change them")


def has_active_jobs(queue: str, active: int) -> ConfigError:
    """An obliterate without force while jobs run."""
    return ConfigError(
        f"queue {queue!r} has {active} active jobs: stop its workers first, or use force"
    )


def not_ended(state: State) -> ConfigError:
    """A clean of a state whose jobs have not ended."""
    return ConfigError(
        f"clean removes ended jobs; {state} is not an ended state (completed, failed or cancelled is)"
    )


# ── reads ─────────────────────────────────────────────────────────────────────────────────────────


def no_cursor(cursor: str) -> InvalidJob:
    """A cursor that no page of this listing gave."""
    return InvalidJob(
        f"{shown(cursor)} is not a cursor of this listing: use the one the last page gave"
    )


def no_position(after: str) -> InvalidJob:
    """A position that is not one of this log."""
    return InvalidJob(
        f"{shown(after)} is not a position in an event log: use one that an event has, or '0' for the oldest kept"
    )
