"""Outcomes that cannot be stored: refused, and not mistaken for an outage.

A worker repeats an exchange while the store is unavailable. If a store called an outcome that it
cannot encode an outage, one job would block the exchange for all others.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from jobq.core.records.jobs import AnyOutcome, Block, Lease, RetryLater
from jobq.core.records.states import State
from jobq.errors import AccessDenied, StoreUnavailable
from jobq_conformance.kit import Desk, complete, defer, failure, hold, snooze

HUGE, TORN = 2**70, "half of a pair: \ud800"


def _retry(lease: Lease, **fields: object) -> RetryLater:
    told = msgspec.structs.replace(failure(lease), **fields)
    return RetryLater(queue=lease.queue, id=lease.id, token=lease.token, failure=told)


def _block(lease: Lease, **fields: object) -> Block:
    return Block(queue=lease.queue, id=lease.id, token=lease.token, **fields)  # type: ignore[arg-type]


BAD: dict[str, Callable[[Lease], AnyOutcome]] = {
    "retry, huge delay": lambda lease: msgspec.structs.replace(_retry(lease), delay_ms=HUGE),
    "retry, delay of nan": lambda lease: msgspec.structs.replace(
        _retry(lease), delay_ms=float("nan")
    ),
    "retry, torn message": lambda lease: _retry(lease, message=TORN),
    "retry, torn traceback": lambda lease: _retry(lease, traceback=TORN),
    "retry, huge attempt": lambda lease: _retry(lease, attempt=HUGE),
    "retry, no text": lambda lease: _retry(lease, message=object()),
    "snooze, huge delay": lambda lease: snooze(lease, HUGE),
    "snooze, no bytes": lambda lease: snooze(lease, 0, object()),  # type: ignore[arg-type]
    "hold, huge delay": lambda lease: hold(lease, HUGE),
    "defer, huge delay": lambda lease: defer(lease, HUGE),
    "block, huge timeout": lambda lease: _block(lease, signal="s", timeout_ms=HUGE),
    "block, torn signal": lambda lease: _block(lease, signal=TORN),
    "complete, no bytes": lambda lease: msgspec.structs.replace(complete(lease), result=object()),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_an_outcome_that_cannot_be_stored_costs_no_other_outcome(
    q: Desk, bad: Callable[[Lease], AnyOutcome]
) -> None:
    await q.put("a", "b", "c")
    first, second, third = await q.claim(3)
    try:
        await q.settle(complete(first), bad(second), complete(third))
    except (StoreUnavailable, TimeoutError, AccessDenied):
        raise
    except Exception:  # refused: a worker then settles the runs one by one
        await q.settle(complete(first))
        with pytest.raises(Exception) as refused:
            await q.settle(bad(second))
        assert not isinstance(refused.value, (StoreUnavailable, TimeoutError, AccessDenied))
        await q.settle(complete(third))
    assert (await q.get("a")).state is State.COMPLETED
    assert (await q.get("c")).state is State.COMPLETED
    await q.get("b")
