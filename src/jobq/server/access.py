"""Which scope each call of the Store contract needs, and what of it belongs to a tenant."""

from __future__ import annotations

from typing import Literal

import msgspec

from jobq.server.principal import Scope

Named = Literal["nothing", "queues", "jobs", "leases", "workers", "tenant", "election"]
"""What the arguments of a call name, so what has to belong to the caller's tenant.

`queues`: queues, also inside specs, edges, templates and records. `jobs` and `leases`: single jobs,
which look missing or lost if they belong to another tenant. `workers`: names of workers, which are
apart for each tenant. `election`: a leadership, which is apart for each tenant.
"""

Elsewhere = Literal["missing", "refused", "hidden"]
"""What happens to something of another tenant.

`missing`: the reply is the same as for something that does not exist. `refused`: JobNotFound.
`hidden`: it is left out of the reply.
"""


class CallRule(msgspec.Struct, frozen=True, kw_only=True):
    """Who may make a call of the Store contract."""

    scopes: frozenset[Scope]
    """One of these is enough. Empty: every caller may make the call. `admin` is always enough."""
    names: Named = "queues"
    elsewhere: Elsewhere = "refused"


def _rule(*scopes: Scope, names: Named = "queues", elsewhere: Elsewhere = "refused") -> CallRule:
    return CallRule(scopes=frozenset(scopes), names=names, elsewhere=elsewhere)


_ADMIN = _rule("admin")
_READ = _rule("read")

CALLS: dict[str, CallRule] = {
    # What runs for every job.
    "put": _rule("produce"),
    "settle": _rule("work"),
    "extend": _rule("work", names="leases", elsewhere="missing"),
    "note": _rule("work", names="leases", elsewhere="missing"),
    "sleep": _rule("work"),
    "listen": _rule("read", "work"),
    # What people and their tools do. `alter` needs admin for a command that removes a record.
    "alter": _rule("produce", names="jobs", elsewhere="missing"),
    "declare": _rule("produce", "work"),
    "set_limits": _ADMIN,
    "pause": _ADMIN,
    "resume": _ADMIN,
    "hold": _ADMIN,
    "release_hold": _ADMIN,
    "release_lock": _ADMIN,
    "purge_pending": _ADMIN,
    "purge_ended": _ADMIN,
    "obliterate": _ADMIN,
    "restore": _ADMIN,
    "put_schedule": _rule("produce", "work"),
    "drop_schedule": _rule("produce"),
    "pause_schedule": _ADMIN,
    "list_schedules": _rule("read", "work", elsewhere="hidden"),
    "fire": _rule("work"),
    # Reading. Workers read the jobs that their handlers wait for.
    "get": _rule("read", "work", names="jobs", elsewhere="missing"),
    "find": _READ,
    "skip": _READ,
    "count": _rule("read", "work"),
    "stats": _READ,
    "holds": _rule("read", "work"),
    "find_lock": _READ,
    "metrics": _READ,
    "logs": _rule("read", names="jobs", elsewhere="missing"),
    "queues": _rule("read", "work", names="tenant", elsewhere="hidden"),
    # Workers.
    "beat": _rule("work", names="workers"),
    "retire": _rule("work", names="workers"),
    "workers": _rule("read", names="workers", elsewhere="hidden"),
    "ask_worker": _rule("admin", names="workers", elsewhere="missing"),
    "lead": _rule("work", names="election"),
    # The event log. Moving a reader decides what the log keeps, so it needs admin.
    "read_events": _READ,
    "ack_events": _READ,
    "readers": _READ,
    "remove_reader": _ADMIN,
    # The server opens and closes its store, and does its upkeep.
    "migrate": _rule(names="nothing"),
    "aclose": _rule(names="nothing"),
    "tick": _rule("work", names="nothing"),
}
"""Every call of the Store contract."""

RPCS: dict[str, str | None] = {
    # JobService
    "Submit": "put",
    "SubmitMany": "put",
    "SubmitStream": "put",
    "SubmitFlow": "put",
    "Get": "get",
    "Wait": "get",
    "List": "find",
    "Logs": "logs",
    "Cancel": "alter",
    "Rerun": "alter",
    "Signal": "alter",
    "Events": "read_events",
    "AckEvents": "ack_events",
    # AdminService
    "CreateQueue": "declare",
    "ListQueues": "queues",
    "GetQueueStats": "stats",
    "PauseQueue": "pause",
    "ResumeQueue": "resume",
    "ClearQueue": "purge_pending",
    "RemoveQueue": "obliterate",
    "SetLimits": "set_limits",
    "Hold": "hold",
    "ReleaseHold": "release_hold",
    "ListHolds": "holds",
    "GetLock": "find_lock",
    "ReleaseLock": "release_lock",
    "PutSchedule": "put_schedule",
    "RemoveSchedule": "drop_schedule",
    "PauseSchedule": "pause_schedule",
    "ResumeSchedule": "pause_schedule",
    "ListSchedules": "list_schedules",
    "ListWorkers": "workers",
    "DrainWorker": "ask_worker",
    "ResumeWorker": "ask_worker",
    "ShutdownWorker": "ask_worker",
    "ListDeadLetters": "find",
    "RerunDeadLetters": "find",
    "PurgeDeadLetters": "purge_ended",
    "ListReaders": "readers",
    "RemoveReader": "remove_reader",
    "ListTenants": "queues",
    "GetStatus": "stats",
    "GetVersion": None,
    # WorkerService
    "Register": "beat",
    "Heartbeat": "beat",
    "StreamJobs": "settle",
    "Claim": "settle",
    "Report": "settle",
    "Release": "settle",
    "Extend": "extend",
    "Note": "note",
    "Deregister": "retire",
}
"""The call of the contract whose scope each RPC needs before its request is looked at.

None: every caller with a token. What an RPC does further is checked when it does it.
"""
