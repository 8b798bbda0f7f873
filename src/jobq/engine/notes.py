"""Sends progress, log lines, checkpoints and steps of running jobs to the store, in batches.

One `note` call is in flight at a time. Whatever arrives meanwhile goes with the next call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from jobq.core.records.jobs import LeaseRef, LeaseState, Note, Steps
from jobq.core.values.printable import storable
from jobq.engine.service import NOT_NOW, Outage
from jobq.errors import LeaseLost
from jobq.stores.base import Store

Round = asyncio.Future[dict[LeaseRef, LeaseState | Exception]]
"""The result of one `note` call: the state of each lease, or why the store refused its note."""


class NotePart(NamedTuple):
    """What a handler says in one call: the parts of a note."""

    progress: bytes | None = None
    lines: tuple[str, ...] = ()
    saved: bytes | None = None
    steps: Steps = ()
    saved_number: int = 0


class Notes:
    """Collects notes and sends them. Belongs to the worker's event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._parts: dict[LeaseRef, list[NotePart]] = {}
        self._round: Round | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._outage = Outage("notes of running jobs")
        self._closed = False

    async def add(self, lease: LeaseRef, part: NotePart) -> LeaseState:
        """Store what a handler says. Returns the state of the lease: if `lost`, nothing was stored.

        While the store is unavailable this waits. The run's timeout still applies.
        """
        if self._closed:  # the caller is a thread that outlived its worker
            raise LeaseLost(
                f"job {lease.id} of queue {lease.queue.queue} was released: its worker has stopped"
            )
        loop = asyncio.get_running_loop()
        self._parts.setdefault(lease, []).append(part)
        if self._round is None:
            self._round = loop.create_future()
        done = self._round
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush(), name="jobq notes")
        state = (await asyncio.shield(done))[lease]
        if isinstance(state, Exception):
            raise state
        return state

    async def aclose(self) -> None:
        """Stop. Calls of `add` that still wait are cancelled."""
        self._closed = True
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait([self._flusher])

    async def _flush(self) -> None:
        done: Round | None = None
        try:
            while self._round is not None:
                done, self._round = self._round, None
                parts, self._parts = self._parts, {}
                notes = [_note(lease, each) for lease, each in parts.items()]
                states = await self._send(notes)
                done.set_result(dict(zip(parts, states, strict=True)))
        finally:
            self._flusher = None
            self._parts = {}
            for future in (done, self._round):
                if future is not None and not future.done():
                    future.cancel()
            self._round = None

    async def _send(self, notes: Sequence[Note]) -> Sequence[LeaseState | Exception]:
        """Store notes. A call that is refused is repeated note by note: one that the store does not
        accept fails its own handler only."""
        while True:
            try:
                states = await self.store.note(notes)
            except NOT_NOW as error:
                await asyncio.sleep(self._outage.failed(error))
            except Exception as error:
                if len(notes) == 1:
                    return [error]
                return [(await self._send([note]))[0] for note in notes]
            else:
                self._outage.over()
                return states


def _note(lease: LeaseRef, parts: list[NotePart]) -> Note:
    """Everything that was said under a lease, as one note. The last progress and state count."""
    progress = [each.progress for each in parts if each.progress is not None]
    saved = [(each.saved, each.saved_number) for each in parts if each.saved is not None]
    return Note(
        lease=lease,
        progress=progress[-1] if progress else None,
        lines=tuple(storable(line) for each in parts for line in each.lines),
        saved=saved[-1][0] if saved else None,
        steps=tuple(step for each in parts for step in each.steps),
        saved_number=saved[-1][1] if saved else 0,
    )
