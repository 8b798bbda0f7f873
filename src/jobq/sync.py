"""`chain`, `group` and `chord` for code without an event loop: `from jobq import sync`, `sync.chain(load, send, first=(7,))`.

Everything else that blocks is reached through `.sync` of a queue, a task or a job.
"""

from jobq.api.sync import (
    Portal,
    SyncFlow,
    SyncJob,
    SyncQueue,
    SyncTask,
    chain,
    chord,
    group,
    portal,
    run,
)

__all__ = [
    "Portal",
    "SyncFlow",
    "SyncJob",
    "SyncQueue",
    "SyncTask",
    "chain",
    "chord",
    "group",
    "portal",
    "run",
]
