"""Which checkpoint of a job stays is what core/rules/outcomes.py says."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.records.jobs import Note
from jobq.core.rules.outcomes import MAX_CHECKPOINTS, checkpoint_place, is_late, keeps_saved
from jobq_conformance.examples import examples
from jobq_conformance.kit import Desk, ref, snooze
from tests.rules.kit import Table

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 9, MAX_CHECKPOINTS - 1, MAX_CHECKPOINTS, 2**40])
RUNS = st.lists(
    st.tuples(st.lists(NUMBERS, max_size=6), NUMBERS, st.booleans()), min_size=1, max_size=4
)
"""Per run of a job: the numbers of its checkpoints in the order in which they arrive, and that
of the snooze that ends it, which may save nothing."""


@given(runs=RUNS)
@examples(40)
def test_the_newest_checkpoint_stays(table: Table, runs: list[tuple[list[int], int, bool]]) -> None:
    async def play(q: Desk) -> None:
        await q.put("a")
        saved: bytes | None = None
        newest = n = 0
        for numbers, last, saves in runs:
            lease = await q.take()
            assert lease.saved == saved
            for number in numbers:
                n += 1
                data = b"%d" % n
                await q.store.note([Note(lease=ref(lease), saved=data, saved_number=number)])
                if not is_late(number, attempt=lease.attempt, newest=newest):
                    saved = data
                newest = max(newest, checkpoint_place(number, attempt=lease.attempt))
                assert (await q.get("a")).saved == saved
            end = snooze(lease, saved=b"end" if saves else None)
            end = msgspec.structs.replace(end, saved_number=last)
            await q.settle(end)
            if not keeps_saved(end, attempt=lease.attempt, newest=newest):
                saved = end.saved

    table.play(play)
