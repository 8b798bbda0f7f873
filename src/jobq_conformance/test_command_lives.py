"""Commands that name a life apply to that life of the job only."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jobq.core.records.commands import (
    APPLIES,
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    Revive,
    SendSignal,
    Update,
)
from jobq.core.records.jobs import JobKey
from jobq_conformance.kit import DAY, SECOND, Desk, complete, fail
from jobq_conformance.roles import needs

pytestmark = needs("operators", "delays", "priorities", "flows")


def made(tag: str, job: JobKey) -> AnyCommand:
    """A command of each kind."""
    commands: dict[str, AnyCommand] = {
        "cancel": Cancel(job=job, cascade=True),
        "rerun": Rerun(job=job),
        "revive": Revive(job=job),
        "promote": Promote(job=job),
        "reprioritise": Reprioritise(job=job, priority=3),
        "reschedule": Reschedule(job=job, delay_ms=SECOND),
        "update": Update(job=job, payload=b"[2]"),
        "remove": Remove(job=job),
        "signal": SendSignal(job=job, name="go"),
    }
    return commands[tag]


async def second_life(q: Desk, tag: str) -> None:
    """A job in its life 1, in a state that the command applies to."""
    await q.put_one("a")
    await q.alter(Cancel(job=q.key("a")))
    await q.alter(Rerun(job=q.key("a")))  # it has never started, for reprioritise and update
    if tag == "promote":
        await q.alter(Reschedule(job=q.key("a"), delay_ms=DAY))
    elif tag in ("rerun", "revive", "remove"):
        await q.settle(fail(await q.take()))


@pytest.mark.parametrize("tag", sorted(APPLIES))
async def test_a_command_for_another_life_changes_nothing(q: Desk, tag: str) -> None:
    await second_life(q, tag)
    before, events = await q.get("a"), await q.events()
    command = made(tag, q.key("a"))
    others = [replace(command, life=life) for life in (0, 2, 2**31 - 1)]
    assert await q.store.alter(others) == ["late"] * 3
    assert (await q.get("a"), await q.events()) == (before, events)
    assert await q.altered(replace(command, life=1)) == "done"


async def test_a_command_for_the_first_life_applies_to_a_job_that_was_never_rerun(q: Desk) -> None:
    await q.run("a")
    assert await q.altered(Remove(job=q.key("a"), life=1)) == "late"
    assert await q.altered(Remove(job=q.key("a"), life=0)) == "done"


async def test_a_rerun_that_names_its_life_acts_once_even_if_the_job_ends_again(q: Desk) -> None:
    await q.run("a")
    command = Rerun(job=q.key("a"), life=0)
    assert await q.store.alter([command, command]) == ["done", "late"]
    await q.settle(complete(await q.take()))
    assert await q.altered(command) == "late"
    assert (await q.get("a")).life == 1


async def test_a_running_job_of_another_life_is_not_asked_to_stop(q: Desk) -> None:
    await q.run("a")
    await q.alter(Rerun(job=q.key("a")))
    lease = await q.take()
    assert await q.altered(Cancel(job=q.key("a"), life=0)) == "late"
    assert not (await q.get("a")).cancel_asked
    assert await q.altered(Cancel(job=q.key("a"), life=lease.life)) == "done"
    assert (await q.get("a")).cancel_asked


async def test_a_removed_job_is_missing_whatever_life_is_named(q: Desk) -> None:
    await q.run("a")
    await q.alter(Remove(job=q.key("a")))
    commands = [Remove(job=q.key("a"), life=life) for life in (None, 0, 1)]
    assert await q.store.alter(commands) == ["missing"] * 3
