"""`chain`, `group` and `chord` for code without an event loop.

    from jobq import sync

    job = sync.chain(load, send, first=(7,))

Everything else that blocks is reached through `.sync` of a queue, a task or a job.
"""

from jobq.api.sync.flow import SyncFlow, chain, chord, group
from jobq.api.sync.job import SyncJob
from jobq.api.sync.queue import SyncQueue
from jobq.api.sync.task import SyncTask
from jobq.client.portal import Portal, portal, run

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
