"""Calls and replies in a few words, for traces and timelines."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from jobq.core.records.jobs import Claim, PutResult, Settled


class Exchanged(NamedTuple):
    """A call about leases that the store has executed, as tests/model replays it."""

    process: str
    name: str
    args: Any
    kwargs: Any
    result: Any
    at_ms: int


def shown_call(name: str, args: Any, kwargs: Any) -> str:
    """A call."""
    if name == "settle":
        outcomes = ", ".join(f"{o.__struct_config__.tag} {o.id}" for o in args[0])
        claim: Claim | None = kwargs.get("then")
        wanted = "" if claim is None else f", claim {claim.limit}{' alone' if claim.alone else ''}"
        return f"settle {kwargs['call'].partition('-')[2]} [{outcomes}]{wanted}"
    if name == "extend":
        return f"extend {', '.join(ref.id for ref in args[0])}"
    if name == "put":
        flow = kwargs.get("flow")
        return f"put {', '.join(spec.id for spec in args[0])}{f' of flow {flow}' if flow else ''}"
    if name == "note":
        return f"note {', '.join(note.lease.id for note in args[0])}"
    if name == "fire":
        return f"fire {', '.join(fire.job_id for fire in args[0])}"
    if name == "alter":
        return "alter " + ", ".join(f"{type(c).__name__} {c.job.id}" for c in args[0])
    return name


def shown_reply(name: str, reply: Any) -> str:
    """A reply."""
    if isinstance(reply, Settled):
        stale = f"stale {', '.join(ref.id for ref in reply.stale)}; " if reply.stale else ""
        leases = ", ".join(f"{lease.id}/{lease.attempt}" for lease in reply.leases)
        return f"{stale}leases [{leases}]{' asleep' if reply.asleep else ''}"
    if name in ("extend", "note", "fire", "alter", "lead", "sleep", "count"):
        return str(reply)
    if name == "put":
        return ", ".join(_told_put(result) for result in reply)
    if name == "beat":
        return "displaced" if reply.displaced else "ok"
    if isinstance(reply, msgspec.Struct | list | tuple):
        return type(reply).__name__
    return str(reply)


def _told_put(result: PutResult) -> str:
    if result.full is not None:
        return "full"
    return f"{result.id} {'duplicate' if result.duplicate else result.state}"
