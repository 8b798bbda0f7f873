"""Lists of jobs by criteria, page by page. Each call looks at a bounded number of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jobq.api.selection import make_criteria
from jobq.core import checks
from jobq.core.criteria import Criteria, Place, pack_place, unpack_place
from jobq.core.moments import moment
from jobq.core.records import JobRecord, QueueName
from jobq.core.states import State
from jobq.stores.base import ReadStore

MAX_PAGE = 1_000
"""Jobs of one page. A page of large jobs still fits into one message."""
_PAGE = 100
"""Jobs of a page if the request names no number."""
_LOOKS = 2_000
"""Jobs that one call compares with the criteria: a fraction of a second."""


class Listed(NamedTuple):
    """A page. `cursor` is empty if there is no more."""

    records: list[JobRecord]
    cursor: str
    looked_at: int = 0


def wanted(
    states: Sequence[str], times: Mapping[str, int], *, name: str, error: str, **more: Any
) -> Criteria:
    """The criteria of a request. `times` are milliseconds; empty texts exclude no job."""
    return make_criteria(
        states,
        {
            "name": name or None,
            "error": error or None,
            **{  # type: ignore[typeddict-item]  # the rest are names of JobCriteria
                option: moment(checks.check_int(ms, f"{option}_ms", high=checks.MAX_EPOCH_MS))
                for option, ms in times.items()
            },
            **more,
        },
    )


def page_size(limit: int, default: int = _PAGE) -> int:
    """How many records a request means. 0 is the default."""
    return checks.check_int(limit, "limit", high=MAX_PAGE) or default


async def listed(
    store: ReadStore,
    queue: QueueName,
    criteria: Criteria,
    *,
    limit: int,
    cursor: str,
    oldest_first: bool = False,
) -> Listed:
    """The next page of jobs that match."""
    states: Sequence[State | None] = criteria.states or (None,)
    place = unpack_place(cursor or None, criteria.digest, len(states))
    found: list[JobRecord] = []
    looked = 0
    number, at = place.state, place.cursor
    while number < len(states):
        filter = criteria.filter(queue, states[number], oldest_first=oldest_first)
        page = await store.find(filter, cursor=at, limit=limit - len(found))
        looked += max(1, len(page.records))
        found += [record for record in page.records if criteria.verdict(record) == "match"]
        number, at = (number + 1, None) if page.cursor is None else (number, page.cursor)
        if len(found) >= limit or looked >= _LOOKS:
            break
    more = number < len(states)
    cursor = pack_place(Place(criteria.digest, number, at)) if more else ""
    return Listed(found, cursor, looked)
