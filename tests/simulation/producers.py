"""Producers and operators: processes that enqueue jobs, give commands, and repeat what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jobq import Every, InvalidJob, Job, JobNotFound, QueueFull, StoreUnavailable
from tests.simulation.app import App
from tests.simulation.scenario import Action

if TYPE_CHECKING:
    from tests.simulation.run import _Stage


class Producer:
    """Works through a list of actions. After a kill, the next incarnation continues with the action
    that the last one did not finish."""

    def __init__(self, stage: _Stage, name: str, actions: list[Action]) -> None:
        self._stage = stage
        self._name = name
        self._actions = actions
        self._next = 0

    @property
    def finished(self) -> bool:
        """Whether all is done."""
        return self._next >= len(self._actions)

    async def run(self, app: App) -> None:
        """Do what is left to do."""
        world = app.world
        while not self.finished:
            action = self._actions[self._next]
            await asyncio.sleep(max(0.0, 1000.0 + action.at - world.now))
            await self._until_known(app, action)
            self._next += 1

    async def _until_known(self, app: App, action: Action) -> None:
        """Repeat an action until the store has replied."""
        app.world.tell(app.process.name, f"{action.what} {action.id}")
        while True:
            try:
                await self._do(app, action)
                return
            except QueueFull:
                app.ledger.refused.add(action.id)
                return
            except (JobNotFound, InvalidJob) as error:
                app.world.tell(app.process.name, f"{action.what} {action.id}: {error}")
                return
            except (StoreUnavailable, TimeoutError):
                await asyncio.sleep(app.process.rng.choice((0.05, 0.5, 2.0)))

    async def _do(self, app: App, action: Action) -> None:
        operate: Callable[[App, Action], Awaitable[Any]] | None = getattr(
            self, f"_{action.what}", None
        )
        if operate is not None:
            await operate(app, action)
            return
        task = getattr(app, _TASKS.get(action.what, action.what))
        options = dict(action.options)
        if action.what not in ("index", "keep"):
            options["id"] = action.id
        job: Job[Any] = await task.options(**options).enqueue(*action.args)
        app.ledger.accepted.setdefault(job.id, job.queue)

    # ── actions that are not one job ──

    async def _flow(self, app: App, action: Action) -> None:
        children, fate = action.args
        members: list[str] = []
        async with app.plain.flow(id=action.id) as flow:
            refs = []
            for n in range(children):
                job = flow.add(app.work, fate if n == 0 else [], 0.1)
                refs.append(job.ref)
                members.append(job.id)
            members.append(flow.add(app.total, refs, []).id)
        app.ledger.flows[action.id] = members
        for member in members:
            app.ledger.accepted[member] = "plain"

    async def _schedule(self, app: App, action: Action) -> None:
        every, times = action.args
        await app.plain.schedule(
            action.id, Every(every, times=times, catch_up="all"), app.scheduled
        )
        app.ledger.schedules[action.id] = times

    def _job(self, app: App, action: Action) -> Job[Any]:
        found = {"d": app.keyed, "n": app.narrow}.get(action.id[0], app.plain)
        return found.job(action.id)

    async def _cancel(self, app: App, action: Action) -> None:
        await self._job(app, action).cancel()

    async def _rerun(self, app: App, action: Action) -> None:
        await self._job(app, action).rerun()

    async def _signal(self, app: App, action: Action) -> None:
        await self._job(app, action).signal("go", "now")

    async def _promote(self, app: App, action: Action) -> None:
        await self._job(app, action).promote()

    async def _reprioritise(self, app: App, action: Action) -> None:
        await self._job(app, action).reprioritise(action.args[0])

    async def _update(self, app: App, action: Action) -> None:
        await self._job(app, action).reschedule(delay=1.0)

    async def _remove(self, app: App, action: Action) -> None:
        await self._job(app, action).remove()

    async def _pause(self, app: App, action: Action) -> None:
        queue = app.queues[action.args[0] % len(app.queues)]
        await queue.pause()
        await asyncio.sleep(2.0)
        await queue.resume()

    async def _hold(self, app: App, action: Action) -> None:
        if action.args[0] % 2:
            await app.keyed.hold(2.0, key="a")
        else:
            await app.narrow.hold(2.0)

    async def _restart(self, app: App, action: Action) -> None:
        """A deploy: a worker is told to stop, and its successor starts."""
        seat = f"w{action.args[0] % len(self._stage.scenario.workers)}"
        if seat in self._stage.living and seat in self._stage.stops:
            app.world.tell(seat, "is told to restart")
            process = self._stage.living[seat]
            process.main.call_soon(self._stage.stops[seat])


_TASKS = {"keep": "sync", "narrow": "squeeze"}
