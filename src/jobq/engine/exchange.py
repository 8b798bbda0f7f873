"""Settles and claims in one call, repeated under the same name until the store replies.

So a lost reply loses neither a job nor a slot.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

from jobq.core.records.failures import describe, fingerprint
from jobq.core.records.jobs import Claim, Fail, Failure, Settled
from jobq.engine.run import Run
from jobq.engine.service import NOT_NOW, Outage
from jobq.stores.base import Store

log = logging.getLogger("jobq")


class _Timeout:
    """Raises TimeoutError in a wait that takes too long.

    One timer serves many waits, one after another. A timer for each wait would cost a twentieth of
    a small exchange.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0
        self._waiting: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting, self._until, self._over = (
            asyncio.current_task(),
            loop.time() + self._seconds,
            False,
        )
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._check, loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        waiting, self._waiting = self._waiting, None
        if (
            self._over
            and waiting is not None
            and waiting.uncancel() == 0
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiting is None:
            return
        left = self._until - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._check, loop)
        else:
            self._over = True
            self._waiting.cancel()


class Exchange:
    """The exchanges of a worker with one store in one lane, one at a time."""

    def __init__(
        self, store: Store, *, worker: str, exchange_timeout_ms: int, lane: int = 0
    ) -> None:
        self._store = store
        self._worker = worker
        self._lane = f"/{lane}" if lane else ""
        self._timeout = _Timeout(exchange_timeout_ms / 1000)
        # A worker that restarts under the same name must not get the reply to an earlier call. And
        # lease tokens contain this name, so other tenants of a server must not be able to guess it.
        self._life = secrets.token_hex(8)
        self._calls = 0
        self._outage = Outage(f"exchange with {store.url}")

    async def ask(self, runs: Sequence[Run], claim: Claim | None) -> Settled:
        """Settle these runs, then claim. Waits until the store replies, however long that takes."""
        outcomes = [run.outcome for run in runs if run.outcome is not None]
        call = self._name_call()
        while True:
            try:
                with self._timeout:
                    settled = await self._store.settle(
                        outcomes, worker=self._worker, call=call, then=claim
                    )
            except NOT_NOW as error:
                await asyncio.sleep(self._outage.failed(error))
            except Exception as error:  # refused: settle one by one, to find the outcome at fault
                if not runs:
                    await asyncio.sleep(self._outage.failed(error))
                    return Settled()
                if len(runs) == 1 and claim is None:
                    return await self._give_up(runs[0], error)
                return await self._one_by_one(runs)
            else:
                self._outage.over()
                return settled

    def _name_call(self) -> str:
        self._calls += 1
        return f"{self._life}-{self._calls}{self._lane}"

    async def _one_by_one(self, runs: Sequence[Run]) -> Settled:
        replies = [await self.ask([run], None) for run in runs]
        return Settled(stale=tuple(ref for reply in replies for ref in reply.stale))

    async def _give_up(self, run: Run, error: Exception) -> Settled:
        """Fail a job whose outcome the store refuses. If it refuses that too, the lease expires."""
        log.error("%s: the store refused its outcome: %s", run, error, exc_info=error)
        description = describe(error)
        failure = Failure(
            reason="error",
            type=description.type,
            message=f"the run ended, but the store refused its outcome: {description.message}",
            attempt=run.lease.attempt,
            at_ms=run.now_ms,
            fingerprint=fingerprint(error),
        )
        if isinstance(run.outcome, Fail) and run.outcome.failure.message.startswith(
            "the run ended, but"
        ):
            return Settled()
        run.outcome = Fail(
            queue=run.lease.queue, id=run.lease.id, token=run.lease.token, failure=failure
        )
        return await self.ask([run], None)
