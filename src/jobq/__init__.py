"""jobq, a job queue for Python: every public name, except those of `jobq.sync` and `jobq.testing`.

queue = Queue("billing")

@queue.task(retry=5)
async def charge(tenant: str, invoice: int) -> int: ...

job = await charge.enqueue("acme", invoice=7)
await Worker(queue).run()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobq.core.version import __version__ as __version__

if TYPE_CHECKING:
    from jobq.api.batch import BatchTask
    from jobq.api.current import CurrentJob, SyncCurrentJob, current_job
    from jobq.api.dependencies import Depends
    from jobq.api.enqueueing import EnqueueMiddleware, EnqueueNext, EnqueueRequest
    from jobq.api.event_stream import EventStream
    from jobq.api.flow import Flow, SyncFlow, chain, chord, group
    from jobq.api.info import (
        AppliedOptions,
        Event,
        Failure,
        JobInfo,
        JobRef,
        MinuteMetrics,
        QueueStats,
        StepInfo,
        Undecoded,
        UniqueLock,
        WorkerInfo,
    )
    from jobq.api.job import Job, JobUpdate, QueueFull, SyncJob
    from jobq.api.locks import JobLock, LockInfo, SyncJobLock
    from jobq.api.middleware import (
        CallNext,
        Ending,
        Middleware,
        ending_of,
        on_failure,
        on_start,
        on_success,
    )
    from jobq.api.options import JobOptions, TaskOptions
    from jobq.api.queue import Queue, SyncQueue
    from jobq.api.queue_operations import KeyLimits, QueueLimits
    from jobq.api.schedule import ScheduleInfo
    from jobq.api.selection import Preview, Selection, SyncSelection
    from jobq.api.task import AsyncTask, Call, PlainTask, SyncTask, Task
    from jobq.api.tasks import Tasks
    from jobq.api.worker import Stopped, Worker
    from jobq.api.worker_settings import MissedTime
    from jobq.client.transaction import transaction
    from jobq.core.control import RateLimited, Reject, RetryAfter, Snooze
    from jobq.core.policies import Bucket, Cron, Every, Permissions, Rate, Retention, Retry, Unique
    from jobq.core.records.states import State
    from jobq.core.values.checks import Seconds
    from jobq.core.values.codec import Codec
    from jobq.errors import (
        AccessDenied,
        ConfigError,
        CorruptStore,
        InvalidJob,
        JobCancelled,
        JobFailed,
        JobNotFound,
        JobqError,
        LeaseLost,
        LockTimeout,
        PayloadTooLarge,
        PermissionDenied,
        QueueClosed,
        QuotaExceeded,
        StoreUnavailable,
        Unauthenticated,
        UndecodableArguments,
        UnfitArguments,
        UnstorableResult,
        WaitTimeout,
    )
    from jobq.operations.bulk import BulkProgress
    from jobq.operations.flows import FlowNode, FlowTree
    from jobq.operations.selecting import JobCriteria
else:
    # A name is imported when it is first used: a producer does not pay for the worker, and
    # `jq-ctl --help` for neither (bench/start.py). tests/api/test_public_names.py compares this
    # table with the imports above.
    _MODULES = {
        "jobq.api.batch": "BatchTask",
        "jobq.api.current": "CurrentJob SyncCurrentJob current_job",
        "jobq.api.dependencies": "Depends",
        "jobq.api.enqueueing": "EnqueueMiddleware EnqueueNext EnqueueRequest",
        "jobq.api.event_stream": "EventStream",
        "jobq.api.flow": "Flow SyncFlow chain chord group",
        "jobq.api.info": (
            "AppliedOptions Event Failure JobInfo JobRef MinuteMetrics QueueStats StepInfo "
            "Undecoded UniqueLock WorkerInfo"
        ),
        "jobq.api.job": "Job JobUpdate QueueFull SyncJob",
        "jobq.api.locks": "JobLock LockInfo SyncJobLock",
        "jobq.api.middleware": (
            "CallNext Ending Middleware ending_of on_failure on_start on_success"
        ),
        "jobq.api.options": "JobOptions TaskOptions",
        "jobq.api.queue": "Queue SyncQueue",
        "jobq.api.queue_operations": "KeyLimits QueueLimits",
        "jobq.api.schedule": "ScheduleInfo",
        "jobq.api.selection": "Preview Selection SyncSelection",
        "jobq.api.task": "AsyncTask Call PlainTask SyncTask Task",
        "jobq.api.tasks": "Tasks",
        "jobq.api.worker": "Stopped Worker",
        "jobq.api.worker_settings": "MissedTime",
        "jobq.client.transaction": "transaction",
        "jobq.core.control": "RateLimited Reject RetryAfter Snooze",
        "jobq.core.policies": "Bucket Cron Every Permissions Rate Retention Retry Unique",
        "jobq.core.records.states": "State",
        "jobq.core.values.checks": "Seconds",
        "jobq.core.values.codec": "Codec",
        "jobq.errors": (
            "AccessDenied ConfigError CorruptStore InvalidJob JobCancelled JobFailed "
            "JobNotFound JobqError LeaseLost LockTimeout PayloadTooLarge PermissionDenied "
            "QueueClosed QuotaExceeded StoreUnavailable Unauthenticated UndecodableArguments "
            "UnfitArguments UnstorableResult WaitTimeout"
        ),
        "jobq.operations.bulk": "BulkProgress",
        "jobq.operations.flows": "FlowNode FlowTree",
        "jobq.operations.selecting": "JobCriteria",
    }
    _HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """Import the module of a public name."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        """All names, also those that are not imported yet."""
        return sorted({*globals(), *__all__})


__all__ = [
    # producing
    "Queue",
    "Task",
    "Tasks",
    "AsyncTask",
    "PlainTask",
    "BatchTask",
    "Call",
    "Job",
    "JobOptions",
    "TaskOptions",
    "Seconds",
    "Flow",
    "chain",
    "group",
    "chord",
    "transaction",
    # policies
    "Retry",
    "Unique",
    "Rate",
    "Bucket",
    "Cron",
    "Every",
    "Retention",
    "PermissionDenied",
    "Permissions",
    "Codec",
    # working
    "Worker",
    "Stopped",
    "CurrentJob",
    "SyncCurrentJob",
    "current_job",
    # hooks
    "Depends",
    "Middleware",
    "MissedTime",
    "CallNext",
    "Ending",
    "ending_of",
    "EnqueueMiddleware",
    "EnqueueRequest",
    "EnqueueNext",
    "on_start",
    "on_success",
    "on_failure",
    "RetryAfter",
    "Snooze",
    "RateLimited",
    "Reject",
    # records
    "State",
    "StepInfo",
    "JobInfo",
    "JobUpdate",
    "JobRef",
    "AppliedOptions",
    "UniqueLock",
    "Failure",
    "Event",
    "EventStream",
    "QueueStats",
    "QueueLimits",
    "KeyLimits",
    "MinuteMetrics",
    "WorkerInfo",
    "ScheduleInfo",
    "FlowTree",
    "FlowNode",
    "Undecoded",
    # bulk
    "Selection",
    "JobCriteria",
    "Preview",
    "BulkProgress",
    "JobLock",
    "LockInfo",
    # blocking
    "SyncQueue",
    "SyncTask",
    "SyncJob",
    "SyncFlow",
    "SyncSelection",
    "SyncJobLock",
    # errors
    "JobqError",
    "InvalidJob",
    "PayloadTooLarge",
    "UnfitArguments",
    "UndecodableArguments",
    "UnstorableResult",
    "ConfigError",
    "JobNotFound",
    "JobFailed",
    "JobCancelled",
    "WaitTimeout",
    "LeaseLost",
    "LockTimeout",
    "StoreUnavailable",
    "QueueFull",
    "QuotaExceeded",
    "AccessDenied",
    "Unauthenticated",
    "CorruptStore",
    "QueueClosed",
]
