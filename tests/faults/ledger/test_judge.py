"""The judge accepts good runs and finds every cheat. No servers: the facts are made up."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from tests.faults.ledger import facts
from tests.faults.ledger.cheats import CHEATS, Cheat
from tests.faults.ledger.facts import Event, Record, Run, Story
from tests.faults.ledger.judge import Fault, Judge, Verdict, percentile

KILL = Fault("kill worker", 5_000, 5_010, "w0")
STEPS = {
    "accepted": ("", "waiting"),
    "started": ("waiting", "active"),
    "stalled": ("active", "waiting"),
    "completed": ("active", "completed"),
}


def event(kind: str, at_ms: int, attempt: int, worker: str = "", id: str = "") -> Event:
    previous, state = STEPS[kind]
    return Event(id or f"{kind}-{at_ms}", kind, previous, state, attempt, 0, at_ms, worker)


def once(job: int, at_ms: int = 1_000) -> Story:
    """A job that was run once."""
    return Story(
        job,
        acked_ms=at_ms,
        runs=[Run(at_ms + 20, 1, 0, "w1", 11, at_ms + 30)],
        events=[
            event("accepted", at_ms, 0),
            event("started", at_ms + 10, 1, "w1"),
            event("completed", at_ms + 40, 1, "w1"),
        ],
        record=Record("completed", 1, 0),
    )


def twice(job: int) -> Story:
    """A job whose first worker was killed."""
    return Story(
        job,
        acked_ms=4_000,
        runs=[Run(4_900, 1, 0, "w0", 10), Run(7_100, 2, 0, "w1", 11, 7_110)],
        events=[
            event("accepted", 4_000, 0),
            event("started", 4_890, 1, "w0"),
            event("stalled", 7_000, 1, "w0"),
            event("started", 7_050, 2, "w1"),
            event("completed", 7_120, 2, "w1"),
        ],
        record=Record("completed", 2, 0),
    )


def judged(*stories: Story, faults: tuple[Fault, ...] = (KILL,)) -> Verdict:
    return Judge(faults).judge(stories)


def good_run() -> list[Story]:
    return [once(n) for n in range(8)] + [twice(n) for n in range(8, 12)]


def test_a_good_run_has_no_findings_and_its_figures_are_right() -> None:
    verdict = judged(*good_run())
    assert not verdict.findings, verdict.examples
    assert (verdict.jobs, verdict.acknowledged, verdict.runs, verdict.repeats) == (12, 12, 16, 4)
    assert verdict.recovery_ms == [2_100] * 4
    assert verdict.stalls_without_fault == 0


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_every_cheat_is_found(cheat: Cheat) -> None:
    for seed in range(20):
        stories = good_run()
        cheat(stories, random.Random(seed))
        verdict = judged(*stories)
        assert CHEATS[cheat] <= verdict.findings.keys(), (seed, verdict.examples)


def test_wrong_counters_of_the_store_are_found() -> None:
    judge = Judge()
    judge.judge(good_run()[:8])
    judge.check_counts({"completed": 8, "waiting": 0})
    assert not judge.verdict.findings
    judge.check_counts({"completed": 7, "waiting": 1})
    assert judge.verdict.findings == {"wrong count": 1}


def test_a_stall_that_no_fault_explains_is_counted() -> None:
    verdict = judged(twice(1), faults=(Fault("kill worker", 90_000, 90_010),))
    assert not verdict.findings
    assert verdict.stalls_without_fault == 1


def test_a_report_that_was_refused_is_counted() -> None:
    story = twice(1)
    story.late = 1
    assert judged(story).late == 1


# ── classes that lose writes ──────────────────────────────────────────────────────────────────────

CUT = Fault("power cut", 10_000, 10_500, forgets_ms=8_000)


def forgotten(acked_ms: int) -> Story:
    return Story(1, acked_ms=acked_ms)


@pytest.mark.parametrize(("acked_ms", "lost"), [(7_000, 1), (9_000, 0), (10_200, 0), (11_000, 1)])
def test_only_jobs_of_the_last_moments_may_be_lost_in_a_power_cut(acked_ms: int, lost: int) -> None:
    verdict = judged(forgotten(acked_ms), faults=(CUT,))
    assert (verdict.lost, verdict.forgotten) == (lost, 1 - lost)


def test_nothing_may_be_lost_in_a_power_cut_of_a_durable_store() -> None:
    verdict = judged(forgotten(9_999), faults=(CUT._replace(forgets_ms=None),))
    assert verdict.lost == 1


def done_again(first_ms: int, next_ms: int = 11_000) -> Story:
    """A job whose completion was undone, and that ran again after the power cut."""
    story = once(1, first_ms)
    story.runs.append(Run(next_ms, 1, 0, "w2", 12, next_ms + 10))
    story.undone = story.events[1:]
    story.events[1:] = [
        event("started", next_ms - 100, 1, "w2", "started-again"),
        event("completed", next_ms + 20, 1, "w2", "completed-again"),
    ]
    return story


@pytest.mark.parametrize("next_ms", [11_000, 10_450])  # before the run of faults went on, too
def test_a_run_that_a_power_cut_has_undone_explains_the_next_one(next_ms: int) -> None:
    verdict = judged(done_again(9_000, next_ms), faults=(CUT,))
    assert not verdict.findings, verdict.examples
    assert verdict.repeats == 1


def test_a_run_before_the_last_moments_explains_no_other_run() -> None:
    verdict = judged(done_again(6_000), faults=(CUT,))
    assert {"unexplained repeat", "undone"} <= verdict.findings.keys()


def test_a_claim_that_was_lost_before_it_was_read_may_be_missing_in_the_log() -> None:
    story = once(1, 9_000)
    story.events = [
        event("accepted", 9_000, 0),
        event("started", 10_900, 1, "w2"),
        event("completed", 11_020, 1, "w2"),
    ]
    story.runs.append(Run(11_000, 1, 0, "w2", 12, 11_010))
    assert not judged(story, faults=(CUT,)).findings
    story.runs[0] = story.runs[0]._replace(at_ms=6_000, ended_ms=6_010)
    assert "hidden run" in judged(story, faults=(CUT,)).findings


def test_what_an_old_primary_has_said_may_be_undone_and_excuses_no_run() -> None:
    failover = Fault("failover", 10_000, 10_500, forks_ms=8_000)
    story = once(1, 9_000)
    story.runs = [Run(11_000, 1, 0, "w2", 12, 11_010)]
    story.undone = [event("started", 9_500, 1, "w1")]  # not acknowledged: w1 has not run it
    story.events[1:] = [
        event("started", 10_900, 1, "w2"),
        event("completed", 11_020, 1, "w2"),
    ]
    assert not judged(story, faults=(failover,)).findings
    story.runs.insert(0, Run(9_600, 1, 0, "w1", 11, 9_610))
    assert judged(story, faults=(failover,)).findings == {"unexplained repeat": 1}
    assert judged(forgotten(9_999), faults=(failover,)).lost == 1


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def test_lines_of_all_files_become_one_story_per_job(tmp_path: Path) -> None:
    first, second = event("accepted", 900, 0), event("started", 1_000, 1, "w1")
    (tmp_path / "a.facts").write_text(facts.acked(7, 1_000) + facts.acked(3, 900))
    (tmp_path / "b.facts").write_text(
        facts.run_started(7, 1_100, 1, 0, "w1")
        + facts.run_ended(7, 1_200, 1, 0, "w1")
        + facts.refused(7, 1_300, 1)
        + facts.run_started(7, 1_400, 2, 0, "w1")[:-9]  # cut short by a kill
    )
    (tmp_path / "c.facts").write_text(
        facts.happened(7, 0, 10, second)
        + facts.happened(7, 0, 9, first)
        + facts.recorded(7, "completed", 1, 0)
    )
    facts.merge(tmp_path, tmp_path / "sorted.txt")
    with (tmp_path / "sorted.txt").open() as lines:
        other, story = facts.stories(lines)
    assert (other.job, other.acked_ms, other.runs) == (3, 900, [])
    assert (story.job, story.acked_ms, story.late) == (7, 1_000, 1)
    assert [(run.attempt, run.at_ms, run.ended_ms) for run in story.runs] == [(1, 1_100, 1_200)]
    assert story.events == [first, second]
    assert story.record == Record("completed", 1, 0)


def test_the_order_is_that_of_the_log_and_not_that_of_reading_it() -> None:
    accepted, lost = event("accepted", 900, 0), event("started", 1_000, 1, "w1")
    stalled, claimed = event("stalled", 3_000, 1, "w0"), event("started", 1_100, 1, "w0")
    lines = [
        facts.happened(7, 0, 5, accepted),
        facts.happened(7, 0, 8, lost),  # on a primary whose replica did not have it
        facts.happened(7, 0, 12, stalled),  # the reader skipped 8 to 11 on the new primary
        facts.happened(7, 1, 8, claimed),
        facts.happened(7, 1, 12, stalled),
    ]
    (story,) = facts.stories(sorted(lines), [(0, 0), (1, 6), (2, 20)])
    assert story.events == [accepted, claimed, stalled]
    assert story.undone == [lost]


def test_an_attempt_may_start_after_the_next_one() -> None:
    story = once(1)
    story.events[1:] = [
        event("started", 2_000, 1, "w0"),
        event("stalled", 3_000, 1),
        event("started", 3_100, 2, "w1"),
        event("stalled", 4_000, 2),
        event("started", 4_100, 3, "w2"),
        event("completed", 4_300, 3, "w2"),
    ]
    late = Run(4_200, 2, 0, "w1", 11)
    story.runs = [Run(2_100, 1, 0, "w0", 10), Run(4_150, 3, 0, "w2", 12, 4_180), late]
    assert "unexplained repeat" not in judged(story).findings
    del story.events[4]  # the event that says why attempt 2 did not count
    assert judged(story).findings["unexplained repeat"] == 1


def test_percentiles_are_values_of_the_list() -> None:
    assert [percentile(list(range(100)), share) for share in (0.5, 0.99)] == [50, 99]
    assert percentile([], 0.5) == 0


def test_cheats_leave_the_other_jobs_alone() -> None:
    stories = good_run()
    before = copy.deepcopy(stories)
    for cheat in CHEATS:
        stories = copy.deepcopy(before)
        cheat(stories, random.Random(1))
        assert sum(now != then for now, then in zip(stories, before, strict=True)) == 1
