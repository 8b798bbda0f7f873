"""The one table of who may do what: every call of the Store contract, every RPC and every route of
the dashboard. docs/guide/access.md is made from it (scripts/access_doc.py).
"""

from __future__ import annotations

from itertools import product

import msgspec

from jobq.access.principal import Principal, Scope


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """Who may make a call of the Store contract, or use an RPC or a route of the dashboard."""

    needs: tuple[frozenset[Scope], ...] = ()
    """One scope of each is needed, and `admin` is always enough. Empty: every caller."""
    besides: tuple[str, frozenset[Scope]] | None = None
    """When something more is needed, and what: `("with a position", {"admin"})`."""
    signed_in: bool = True
    """Whether the caller has to say who it is."""
    calls: tuple[str, ...] = ()
    """The calls of the Store contract whose scopes these are."""

    def admits(self, principal: Principal) -> bool:
        """Whether the principal may use it."""
        return all(map(principal.may, self.needs))

    def in_words(self) -> str:
        """The scopes in words: `work, or produce and read`."""
        if not self.signed_in:
            return "none"
        words = _in_words(self.needs) or "any"
        if self.besides is None:
            return words
        when, needed = self.besides
        return f"{words}; {when}: {_in_words((needed,))}"


def _in_words(needs: tuple[frozenset[Scope], ...]) -> str:
    ways = {frozenset(way) for way in product(*needs)}
    least = [way for way in ways if not any(other < way for other in ways)]
    texts = [
        " and ".join(sorted(way)) for way in sorted(least, key=lambda way: (len(way), sorted(way)))
    ]
    return (", or " if any(" and " in text for text in texts) else " or ").join(texts)


def _rule(*scopes: Scope) -> Door:
    """One of these scopes is enough."""
    return Door(needs=(frozenset(scopes),))


_ANY = Door()
_OPEN = Door(signed_in=False)
_ADMIN = _rule("admin")
_READ = _rule("read")

CALLS: dict[str, Door] = {
    # What runs for every job.
    "put": _rule("produce"),
    "settle": _rule("work"),
    "extend": _rule("work"),
    "note": _rule("work"),
    "sleep": _rule("work"),
    "listen": _rule("read", "work"),
    # What people and their tools do.
    "alter": _rule("produce"),
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
    "list_schedules": _rule("read", "work"),
    "fire": _rule("work"),
    # Reading. Workers read the jobs that their handlers wait for.
    "get": _rule("read", "work"),
    "find": _READ,
    "skip": _READ,
    "count": _rule("read", "work"),
    "stats": _READ,
    "holds": _rule("read", "work"),
    "find_lock": _READ,
    "metrics": _READ,
    "logs": _READ,
    "queues": _rule("read", "work"),
    # Workers.
    "beat": _rule("work"),
    "retire": _rule("work"),
    "workers": _READ,
    "ask_worker": _ADMIN,
    "lead": _rule("work"),
    # The event log. Moving a reader decides what the log keeps (see PARTS).
    "read_events": _READ,
    "ack_events": _READ,
    "readers": _READ,
    "remove_reader": _ADMIN,
    # The server opens and closes its store, and does its upkeep.
    "migrate": _ANY,
    "aclose": _ANY,
    "tick": _rule("work"),
}
"""Every call of the Store contract."""

PARTS: dict[str, Door] = {
    "alter that removes a job": _ADMIN,
    "ack_events with a position": _ADMIN,
}
"""What a call needs besides its own scope if it does this."""


def _of(*calls: str, besides: tuple[str, str] | None = None) -> Door:
    """Needs the scopes of these calls of the contract."""
    return Door(
        calls=calls,
        needs=tuple(dict.fromkeys(needed for call in calls for needed in CALLS[call].needs)),
        besides=None if besides is None else (besides[0], PARTS[besides[1]].needs[0]),
    )


RPCS: dict[str, Door] = {
    # JobService
    "Submit": _of("put"),
    "SubmitMany": _of("put"),
    "SubmitStream": _of("put"),
    "SubmitFlow": _of("put"),
    "Get": _of("get"),
    "Wait": _of("get"),
    "List": _of("find"),
    "Logs": _of("logs"),
    "Cancel": _of("alter"),
    "Rerun": _of("alter"),
    "Signal": _of("alter"),
    "Events": _of("read_events", besides=("with a new reader", "ack_events with a position")),
    "AckEvents": _of("ack_events", besides=("with a position", "ack_events with a position")),
    # AdminService
    "CreateQueue": _of("declare", "queues"),
    "ListQueues": _of("queues"),
    "GetQueueStats": _of("stats"),
    "PauseQueue": _of("pause"),
    "ResumeQueue": _of("resume"),
    "ClearQueue": _of("purge_pending"),
    "RemoveQueue": _of("obliterate"),
    "SetLimits": _of("set_limits"),
    "Hold": _of("hold"),
    "ReleaseHold": _of("release_hold"),
    "ListHolds": _of("holds"),
    "GetLock": _of("find_lock"),
    "ReleaseLock": _of("release_lock"),
    "PutSchedule": _of("put_schedule"),
    "RemoveSchedule": _of("drop_schedule"),
    "PauseSchedule": _of("pause_schedule"),
    "ResumeSchedule": _of("pause_schedule"),
    "ListSchedules": _of("list_schedules"),
    "ListWorkers": _of("workers"),
    "DrainWorker": _of("ask_worker"),
    "ResumeWorker": _of("ask_worker"),
    "ShutdownWorker": _of("ask_worker"),
    "ListDeadLetters": _of("find"),
    "RerunDeadLetters": _ADMIN,  # it changes a whole queue, as PurgeDeadLetters does
    "PurgeDeadLetters": _of("purge_ended"),
    "ListReaders": _of("readers"),
    "RemoveReader": _of("remove_reader"),
    "ListTenants": _of("queues"),
    "GetStatus": _of("stats"),
    "GetVersion": _ANY,
    # WorkerService
    "Register": _of("beat"),
    "Heartbeat": _of("beat"),
    "StreamJobs": _of("settle"),
    "Claim": _of("settle"),
    "Report": _of("settle"),
    "Release": _of("settle"),
    "Extend": _of("extend"),
    "Note": _of("note"),
    "Deregister": _of("retire"),
    "Exchange": _ANY,  # each of its calls needs what CALLS says
}
"""Every RPC. Its scope is checked before its request is looked at, and the .proto files say it."""

ROUTES: dict[str, Door] = {
    "GET /static": _OPEN,
    "GET /sign-in": _OPEN,
    "POST /sign-in": _OPEN,
    "POST /sign-out": _ANY,
    # Pages
    "GET /": _of("stats"),
    "GET /queue": _of("stats"),
    "GET /jobs": _of("find"),
    "GET /job": _of("find"),
    "GET /search": _of("find"),
    "GET /dead": _of("find"),
    "GET /schedules": _of("list_schedules"),
    "GET /flows": _of("find"),
    "GET /flow": _of("find"),
    "GET /workers": _of("workers"),
    "GET /worker": _of("workers"),
    "GET /tenants": _of("metrics"),
    "GET /live": _of("stats"),
    "GET /payload": _of("find"),
    # The JSON API: what it reads
    "GET /api/v1/openapi.json": _ANY,
    "GET /api/v1/session": _ANY,
    "GET /api/v1/overview": _of("stats"),
    "GET /api/v1/queues": _of("stats"),
    "GET /api/v1/queue": _of("stats"),
    "GET /api/v1/queue/minutes": _of("metrics"),
    "GET /api/v1/queue/events": _of("read_events"),
    "GET /api/v1/jobs": _of("find"),
    "GET /api/v1/jobs/preview": _of("find"),
    "GET /api/v1/job": _of("logs"),
    "GET /api/v1/dead": _of("find"),
    "GET /api/v1/schedules": _of("list_schedules"),
    "GET /api/v1/flows": _of("find"),
    "GET /api/v1/flow": _of("find"),
    "GET /api/v1/workers": _of("workers"),
    "GET /api/v1/worker": _of("workers"),
    "GET /api/v1/tenants": _of("metrics"),
    # The JSON API: its actions. Those on jobs say what has become of the job.
    "POST /api/v1/queue/pause": _of("pause"),
    "POST /api/v1/queue/resume": _of("resume"),
    "POST /api/v1/queue/hold": _of("hold"),
    "POST /api/v1/queue/release-hold": _of("release_hold"),
    "POST /api/v1/queue/limits": _of("set_limits"),
    "POST /api/v1/queue/clear": _of("purge_pending"),
    "POST /api/v1/queue/purge": _of("purge_ended"),
    "POST /api/v1/queue/release-lock": _of("release_lock"),
    "POST /api/v1/job/cancel": _of("alter", "find"),
    "POST /api/v1/job/rerun": _of("alter", "find"),
    "POST /api/v1/job/revive": _of("alter", "find"),
    "POST /api/v1/job/promote": _of("alter", "find"),
    "POST /api/v1/job/reprioritise": _of("alter", "find"),
    "POST /api/v1/job/reschedule": _of("alter", "find"),
    "POST /api/v1/job/update": _of("alter", "find"),
    "POST /api/v1/job/signal": _of("alter", "find"),
    "POST /api/v1/job/remove": _ADMIN,
    "POST /api/v1/flow/rerun": _of("alter", "find"),
    "POST /api/v1/jobs/rerun": _of("alter", "find"),
    "POST /api/v1/jobs/cancel": _of("alter", "find"),
    "POST /api/v1/jobs/promote": _of("alter", "find"),
    "POST /api/v1/jobs/remove": _ADMIN,
    "POST /api/v1/schedule/run": _of("put", "list_schedules"),
    "POST /api/v1/schedule/pause": _of("pause_schedule"),
    "POST /api/v1/schedule/resume": _of("pause_schedule"),
    "POST /api/v1/schedule/remove": _of("drop_schedule"),
    "POST /api/v1/worker/drain": _of("ask_worker"),
    "POST /api/v1/worker/resume": _of("ask_worker"),
    "POST /api/v1/worker/stop": _of("ask_worker"),
    "POST /api/v1/worker/stop-now": _of("ask_worker"),
    "POST /api/v1/worker/concurrency": _of("ask_worker"),
}
"""Every route of the dashboard, below its mount. A page shows a button only if its action admits
the reader."""

DOORS: dict[str, Door] = {**CALLS, **PARTS, **RPCS, **ROUTES}
"""All of them by name: what `Guard.check` looks up."""
