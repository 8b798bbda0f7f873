"""Ids are in the order they were made."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from jobq.client.ids import new_id
from jobq.core.values.checks import check_id
from jobq.core.values.ids import IdMaker


@given(
    st.lists(st.integers(0, 2**48 - 1), min_size=2, max_size=50),
    st.integers(0, 2**40 - 1),
    st.integers(0, 2**32),
)
def test_ids_of_one_maker_ascend_whatever_the_clock_does(
    times: list[int], chance: int, count: int
) -> None:
    maker = IdMaker(chance=chance, count=count)
    made = [maker.next(at_ms) for at_ms in times]
    assert made == sorted(set(made))
    assert {len(id) for id in made} == {26}


def test_ids_ascend_over_the_turn_of_the_counters_low_part() -> None:
    maker = IdMaker(chance=0, count=2**20 - 3)
    made = [maker.next(1000) for _ in range(6)]
    assert made == sorted(set(made))


def test_ids_of_different_makers_go_by_time() -> None:
    early, late = IdMaker(chance=2**40 - 1, count=2**32), IdMaker(chance=0)
    assert early.next(1000) < late.next(1001)


def test_an_id_passes_the_check_of_ids() -> None:
    id = new_id()
    assert check_id(id) == id


def test_many_threads_get_different_ids() -> None:
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [new_id() for _ in range(2000)], range(8)))
    assert all(batch == sorted(batch) for batch in batches)
    assert len({id for batch in batches for id in batch}) == 16_000


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    new_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "".join(new_id() for _ in range(20)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    theirs = {text[n : n + 26] for n in range(0, len(text), 26)}
    ours = {new_id() for _ in range(20)}
    assert len(theirs) == 20
    assert not {id[-8:] for id in theirs} & {id[-8:] for id in ours}
