"""jobq, a job queue for Python: every public name, except those of `jobq.sync` and `jobq.testing`.

queue = Queue("billing")

@queue.task(retry=5)
async def charge(tenant: str, invoice: int) -> int: ...

job = await charge.enqueue("acme", invoice=7)
await Worker(queue).run()
"""

from jobq.api.applied import AppliedOptions, UniqueLock
from jobq.api.batch import BatchTask
from jobq.api.current import CurrentJob, SyncCurrentJob, current_job
from jobq.api.dependencies import Depends
from jobq.api.ending import Ending, ending_of
from jobq.api.enqueue_middleware import EnqueueMiddleware, EnqueueNext, EnqueueRequest
from jobq.api.event_stream import EventStream
from jobq.api.flow import Flow, SyncFlow, chain, chord, group
from jobq.api.hooks import on_failure, on_start, on_success
from jobq.api.info import (
    Event,
    Failure,
    JobInfo,
    JobRef,
    MinuteMetrics,
    QueueStats,
    StepInfo,
    Undecoded,
    WorkerInfo,
)
from jobq.api.job import Job, QueueFull, SyncJob
from jobq.api.limits import KeyLimits, QueueLimits
from jobq.api.locks import JobLock, LockInfo, SyncJobLock
from jobq.api.middleware import CallNext, Middleware
from jobq.api.options import JobOptions, TaskOptions
from jobq.api.queue import Queue, SyncQueue
from jobq.api.schedule import ScheduleInfo
from jobq.api.selection import Preview, Selection, SyncSelection
from jobq.api.stopped import Stopped
from jobq.api.task import AsyncTask, Call, PlainTask, SyncTask, Task
from jobq.api.tasks import Tasks
from jobq.api.update import JobUpdate
from jobq.api.worker import Worker
from jobq.api.worker_callbacks import MissedTime
from jobq.client.transaction import transaction
from jobq.core.checks import Seconds
from jobq.core.codec import Codec
from jobq.core.control import RateLimited, Reject, RetryAfter, Snooze
from jobq.core.policies import Bucket, Cron, Every, Permissions, Rate, Retention, Retry, Unique
from jobq.core.states import State
from jobq.core.version import __version__ as __version__
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
