"""The four unique modes.

In every phase another job asks for the subject's lock. Its mode and the holder's state decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from jobq.core.records.jobs import JobRecord, Lease, PutResult, UniqueMode, UniqueSpec
from jobq.core.records.states import State
from jobq_conformance.kit import SECOND
from tests.pairs.feature import Feature
from tests.pairs.scene import Scene

THROTTLE_MS = 30 * SECOND
DEBOUNCE_MS = 2 * SECOND
LOCK = "same"


@dataclass
class Lock:
    """Who holds the lock, as the rules have it."""

    holder: str | None
    until_ms: int | None  # of a throttle
    follower: str | None = None
    knocks: int = 0


def lock_of(scene: Scene) -> Lock:
    """The lock, which the subject takes when it is accepted."""
    if "lock" not in scene.memory:
        scene.memory["lock"] = Lock(scene.subject, _until(scene, scene.options["unique"]))
    lock: Lock = scene.memory["lock"]
    return lock


def _until(scene: Scene, unique: UniqueSpec | None) -> int | None:
    if unique is None or unique.mode != "throttle" or unique.ttl_ms is None:
        return None
    return scene.clock.now_ms + unique.ttl_ms


async def _holder(scene: Scene, lock: Lock) -> tuple[bool, JobRecord | None]:
    """Whether the lock is held, and the record of its holder."""
    record = None if lock.holder is None else await scene.desk.look(lock.holder)
    cancelled = record is not None and record.state is State.CANCELLED
    if (
        lock.until_ms is not None
    ):  # a throttle holds for its time whatever happens, except that a cancel releases it
        if scene.clock.now_ms < lock.until_ms and not cancelled:
            return True, record
    elif record is not None and not record.state.ended:
        return True, record
    lock.holder, lock.follower, lock.until_ms = lock.follower, None, None
    if lock.holder is None:
        return False, None
    assert (await scene.desk.get(lock.holder)).state is not State.BLOCKED, (
        "the job it follows has ended, and it stays blocked"
    )
    return await _holder(scene, lock)


async def lock_now(scene: Scene) -> Lock:
    """The lock with its present holder."""
    lock = lock_of(scene)
    await _holder(scene, lock)
    return lock


async def knock(scene: Scene) -> None:
    """Put another job with the same lock, and check what became of it."""
    lock = lock_of(scene)
    held, holder = await _holder(scene, lock)
    lock.knocks += 1
    mode = newcomer_mode(scene)
    unique = msgspec.structs.replace(
        scene.options["unique"], mode=mode, ttl_ms=THROTTLE_MS if mode == "throttle" else None
    )
    options: dict[str, Any] = {
        **scene.options,
        "unique": unique,
        "after": (),
        "payload": f'["twin {lock.knocks}"]'.encode(),
    }
    id = scene.name(f"twin{lock.knocks}")
    (result,) = await scene.store.put([scene.spec(id, **options)])
    await scene.note_put([result])
    expected = (
        _expected(mode, held, holder, await _alive(scene, lock.follower))
        if one_mode(scene)
        else None
    )
    met = holder and (holder.id, holder.state, holder.attempt)
    what_happened = f"{mode} met {met}: {result.id} {result.state}, duplicate={result.duplicate}"
    if expected is None:  # the rules leave this open: the stores must agree all the same
        await _adopt(scene, lock, id, result)
        return
    match expected:
        case "accepted":
            assert (result.id, result.duplicate) == (id, False), (
                f"should be accepted: {what_happened}"
            )
            lock.holder, lock.follower, lock.until_ms = id, None, _until(scene, unique)
        case "follows":
            assert (result.id, result.duplicate, result.state) == (id, False, State.BLOCKED), (
                f"should follow: {what_happened}"
            )
            lock.follower = id
        case "follower replaced":
            assert (result.id, result.duplicate) == (lock.follower, True), (
                f"should replace the follow-up: {what_happened}"
            )
        case "duplicate" | "replaced":
            assert (result.id, result.duplicate) == (lock.holder, True), (
                f"should be a duplicate: {what_happened}"
            )
    await _check_data(scene, expected, result.id, options["payload"])


async def _adopt(scene: Scene, lock: Lock, id: str, result: PutResult) -> None:
    """Where the rules leave the answer open, the scene goes on with the answer that was given."""
    if not result.duplicate:
        if result.state is State.BLOCKED and not scene.options.get("after"):
            lock.follower = id
        else:
            lock.holder, lock.follower, lock.until_ms = (
                id,
                None,
                _until(scene, scene.specs[id].unique),
            )
    record = await scene.look()
    if record is not None:
        scene.payload = record.payload


async def _check_data(scene: Scene, expected: str, id: str, payload: bytes) -> None:
    """The newest data runs where the rules say so, and nothing else changes."""
    record = await scene.desk.look(id)
    if expected in ("replaced", "follower replaced"):
        assert record is not None
        assert record.payload == payload, f"{id} was to run with the newest data"
        if id == scene.subject:
            scene.payload = payload
    elif expected == "duplicate" and id == scene.subject and record is not None:
        assert record.payload == scene.payload, f"{id} lost its own data to a duplicate"


async def _alive(scene: Scene, id: str | None) -> bool:
    record = None if id is None else await scene.desk.look(id)
    return record is not None and not record.state.ended


def one_mode(scene: Scene) -> bool:
    """Whether newcomers have the subject's mode. The rules do not cover mixed modes."""
    return bool(newcomer_mode(scene) == scene.options["unique"].mode)


def newcomer_mode(scene: Scene) -> UniqueMode:
    """The mode of a job that asks for the lock.

    With two unique features the subject has the mode of the last one. Jobs that arrive once it has
    started have the mode of the first, as after a deploy that changed the mode."""
    modes: list[UniqueMode] = [
        f.options["unique"].mode for f in scene.features if "unique" in f.options
    ]
    return modes[0] if scene.leases else modes[-1]


def _expected(
    mode: UniqueMode, held: bool, holder: JobRecord | None, has_follower: bool
) -> str | None:
    if not held:
        return "accepted"
    if mode in ("simple", "throttle"):
        return "duplicate"
    if holder is None:
        return None
    if holder.state.ended:  # it holds for a time
        return None
    if holder.life and holder.state is not State.ACTIVE:
        return None  # begun again, not yet started in this life
    if holder.attempt == 0:
        return "replaced"
    if mode == "debounce":
        return "accepted"
    return "follower replaced" if has_follower else "follows"


async def _knock_while_running(scene: Scene, lease: Lease) -> None:
    await knock(scene)


async def _knock_after(scene: Scene) -> None:
    await knock(scene)
    lock = lock_of(scene)
    if lock.until_ms is not None and scene.clock.now_ms < lock.until_ms:
        await scene.pass_time(lock.until_ms + SECOND - scene.clock.now_ms)
        await knock(scene)


def _unique(mode: UniqueMode, **options: Any) -> Feature:
    spec = UniqueSpec(lock=LOCK, mode=mode, ttl_ms=THROTTLE_MS if mode == "throttle" else None)
    return Feature(
        name=mode,
        options={"unique": spec, **options},
        pending=knock,
        running=_knock_while_running,
        between=knock,
        after=_knock_after,
    )


UNIQUE = (
    _unique("simple"),
    _unique("throttle"),
    _unique("debounce", delay_ms=DEBOUNCE_MS),
    _unique("keep_last"),
)
