"""Statements of the general path that begin at floors while somebody holds a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobq.stores.postgres.floors import Floors, as_columns
from jobq.stores.postgres.queries import FLOORS, HOT_WITH_FLOORS, SQL, UPKEEP_WITH_FLOORS

_Floors = Callable[[Floors, Sequence[Any]], Sequence[Any]]


def _due(floors: Floors, parameters: Sequence[Any]) -> Sequence[Any]:
    return (floors.due(parameters[0]),)


STATEMENTS_WITH_FLOORS: dict[str, tuple[str, _Floors]] = {
    **{
        SQL.hot[name]: (HOT_WITH_FLOORS[name], _due)
        for name in (
            "anything_due", "due", "stalled", "expired", "overdue",
            "next_due", "next_expiry", "next_wait",
        )
    },
    SQL.hot["claim_plain"]: (
        FLOORS["claim_plain"],
        lambda floors, parameters: as_columns(floors.ranges([parameters[4]])),
    ),
    SQL.upkeep["to_tick"]: (UPKEEP_WITH_FLOORS["to_tick"], lambda floors, _: floors.times()),
    SQL.upkeep["past_retention"]: (
        UPKEEP_WITH_FLOORS["past_retention"],
        lambda floors, parameters: (floors.past(parameters[0]),),
    ),
    SQL.upkeep["beyond_count"]: (
        UPKEEP_WITH_FLOORS["beyond_count"],
        lambda floors, parameters: (floors.oldest(parameters[0], parameters[1]),),
    ),
}  # fmt: skip
"""Statements that begin at floors while somebody holds a snapshot (floors.py), and the floors that
each one takes as further parameters."""
