"""The transition table, and the page that is made of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobq.core.records.event_log import KINDS, STATES
from jobq.core.records.states import (
    ENDED,
    PENDING,
    TRANSITIONS,
    Kind,
    QueueKind,
    State,
    legal,
)

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "states_doc.py"


def test_every_state_can_be_reached_and_every_kind_happens() -> None:
    assert {step.state for step in TRANSITIONS} == set(State)
    assert {step.kind for step in TRANSITIONS} == set(Kind)


def test_a_job_that_has_not_ended_can_end_and_only_a_rerun_leaves_an_end() -> None:
    for state in set(State) - ENDED:
        assert legal(Kind.CANCELLED, state, State.CANCELLED)
    assert {step.kind for step in TRANSITIONS if step.previous in ENDED} == {Kind.RERUN}
    assert PENDING | {State.ACTIVE} | ENDED == set(State)


def test_no_step_is_written_twice() -> None:
    steps = [(step.kind, step.previous, step.state) for step in TRANSITIONS]
    assert len(steps) == len(set(steps))


def test_what_is_not_in_the_table_is_illegal() -> None:
    assert not legal(Kind.STARTED, State.DELAYED, State.ACTIVE)
    assert not legal(Kind.COMPLETED, State.WAITING, State.COMPLETED)


def test_the_event_log_has_a_code_for_each_state_and_kind() -> None:
    assert set(STATES) == set(State)
    assert set(KINDS) == {*Kind, *QueueKind}
    assert len(set(KINDS)) == len(KINDS)


def test_the_page_of_states_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
