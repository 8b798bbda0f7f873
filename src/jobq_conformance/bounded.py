"""Queues with `max_waiting`, for the tests of full queues."""

from __future__ import annotations

from jobq.core.records.jobs import PutResult, UniqueMode, UniqueSpec
from jobq.core.records.queues import Limits, QueueConfig
from jobq_conformance.kit import Desk


async def bound(q: Desk, n: int, version: int = 1) -> None:
    await q.store.declare(
        q.queue, QueueConfig(limits=Limits(max_waiting=n), limits_version=version)
    )


async def rebound(q: Desk, n: int | None) -> None:
    await q.store.set_limits(q.queue, Limits(max_waiting=n))


def took(results: list[PutResult]) -> str:
    """What happened to each spec: j for a new job, d for a duplicate, F for refused (full)."""
    return "".join("F" if r.full is not None else "d" if r.duplicate else "j" for r in results)


async def put(q: Desk, *ids: str, **options: object) -> str:
    return took(await q.put(*ids, **options))


def lock(mode: UniqueMode = "simple", ttl_ms: int | None = None) -> UniqueSpec:
    return UniqueSpec(lock="the-lock", mode=mode, ttl_ms=ttl_ms)
