"""How the verdict about a queue follows from what is known of it. No Spark."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobq.core.records.jobs import QueueName
from jobq.core.records.marks import Mark
from jobq.pipeline.audit.proof import MAX_RANGES, Gap, LogProof, QueueTotals
from jobq.pipeline.audit.store import Contradiction, StoreView
from jobq.pipeline.audit.verdict import Audit, QueueAudit

LOG = LogProof(tenant="acme", queue="mail", log="log", shard=0, proved=9, last=9, marks={1: {0: 9}})
TOTALS = QueueTotals(
    tenant="acme",
    queue="mail",
    events=9,
    jobs=4,
    accepted=3,
    rerun=1,
    carried=1,
    completed=1,
    failed=1,
    cancelled=1,
    states={"waiting": 1, "active": 1, "completed": 1, "failed": 1},
)
GAP = Gap(first=3, last=4, at_ms=1_763_164_800_000, why="dropped")
SPARE = Gap(first=1, last=2, why="removed by retention")


def at(number: int, *, log: str = "log", shard: int = 0) -> Mark:
    """The end of a shard of the store's log."""
    return Mark(queue=QueueName("acme", "mail"), log=log, shard=shard, number=number, at_ms=1)


def store(*ends: Mark, **counts: int) -> StoreView:
    return StoreView(ends=ends or (at(9),), counts={**TOTALS.states, **counts})


def log(**fields: Any) -> LogProof:
    return msgspec.structs.replace(LOG, **fields)


def totals(**fields: Any) -> QueueTotals:
    return msgspec.structs.replace(TOTALS, **fields)


def queue(*logs: LogProof, **fields: Any) -> QueueAudit:
    return QueueAudit(**{"totals": TOTALS, "logs": logs or (LOG,), **fields})


def contradiction(job: str = "j1") -> Contradiction:
    return Contradiction(tenant="acme", queue="mail", job=job, fault="renamed")


PROBLEMS: dict[str, tuple[QueueAudit, list[str]]] = {
    "nothing is wrong": (queue(), []),
    "nothing is wrong, and the store agrees": (queue(store=store()), []),
    "lost events": (queue(log(lost=((2, 3), (5, 5)))), ["3 × lost: 2–3, 5"]),
    "lost events in one of two shards": (
        queue(LOG, log(shard=1, lost=((2, 2),))),
        ["1 × lost: 2 in shard 1 of log log"],
    ),
    "more holes than the proof keeps": (
        queue(log(lost=tuple((n, n) for n in range(1, 2 * MAX_RANGES, 2)))),
        ["up to 1,000 × lost: 1, 3, 5 and 997 more ranges"],
    ),
    "as many holes as are kept, less one": (
        queue(log(lost=tuple((n, n) for n in range(1, 2 * MAX_RANGES - 2, 2)))),
        ["999 × lost: 1, 3, 5 and 996 more ranges"],
    ),
    "forks": (queue(log(twice=2)), ["2 × number of two events"]),
    "forks in one of two shards": (
        queue(LOG, log(shard=1, twice=2)),
        ["2 × number of two events in shard 1 of log log"],
    ),
    "altered": (queue(log(altered=True)), ["events changed after they were checked"]),
    "faults of jobs": (
        queue(totals=totals(faults={"renamed": 2, "resurrected": 0})),
        ["2 × renamed"],
    ),
    "a life that neither ended nor is held": (
        queue(totals=totals(completed=0)),
        ["1 lives neither ended nor held"],
    ),
    "a carried life that vanished": (
        queue(totals=totals(carried=3)),
        ["2 lives neither ended nor held"],
    ),
    "a rerun that vanished": (queue(totals=totals(rerun=2)), ["1 lives neither ended nor held"]),
    "an end too many": (queue(totals=totals(failed=2)), ["1 more lives ended than started"]),
    "a cancel too many": (queue(totals=totals(cancelled=3)), ["2 more lives ended than started"]),
    "a balance that a gap explains": (queue(log(gaps=(GAP,)), totals=totals(failed=2)), []),
    "a balance that an erasure explains": (
        queue(log(erased=((2, 3),)), totals=totals(rerun=0)),
        [],
    ),
    "a store with a shorter log": (
        queue(store=store(at(8))),
        ["the store's log ends at 8, but the lake has 9"],
    ),
    "a store whose other shard is shorter": (
        queue(LOG, log(shard=1), store=store(at(9), at(8, shard=1))),
        ["the store's log ends at 8, but the lake has 9 in shard 1 of log log"],
    ),
    "a store that has started another log": (queue(store=store(at(9), at(3, log="new"))), []),
    "an open job that the store does not have": (
        queue(store=store(waiting=0)),
        ["waiting: 1 in the lake, 0 in the store"],
    ),
    "an open job that only the store has": (
        queue(store=store(delayed=1)),
        ["delayed: 0 in the lake, 1 in the store"],
    ),
    "an open job that only the lake has": (
        queue(store=StoreView(ends=(at(9),), counts={"active": 1})),
        ["waiting: 1 in the lake, 0 in the store"],
    ),
    "an ended job that only the store has": (
        queue(store=store(completed=2)),
        ["completed: 1 in the lake, 2 in the store"],
    ),
    "ended jobs that the store has removed": (queue(store=store(completed=0, failed=0)), []),
    "counts of a store that has moved on": (queue(store=store(at(10), waiting=7)), []),
    "counts of a queue with a gap": (queue(log(gaps=(GAP,)), store=store(waiting=7)), []),
    "a contradiction": (
        queue(contradicted=21, contradictions=(contradiction(), contradiction("j2"))),
        ["21 × unlike the store: j1: renamed"],
    ),
    "a contradiction that an earlier audit found": (
        queue(disputed=("1 × unlike the store: j1: renamed",)),
        ["1 × unlike the store: j1: renamed"],
    ),
    "counts that differed before, and now by more": (
        queue(store=store(waiting=3), disputed=("waiting: 1 in the lake, 2 in the store", "other")),
        ["waiting: 1 in the lake, 3 in the store", "other"],
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_makes_a_queue_violated(name: str) -> None:
    found, problems = PROBLEMS[name]
    assert found.problems == problems
    assert (found.verdict == "violated") == bool(problems)
    whole = Audit(queues=(found,))
    assert (whole.verdict == "violated", whole.exit_code == 1) == (bool(problems),) * 2


DOUBTS: dict[str, tuple[QueueAudit, str | None]] = {
    "nothing": (queue(), None),
    "quarantine": (queue(quarantined=1_234), "1,234 records in quarantine"),
    "events of jobq 0.1": (
        queue(totals=totals(unnumbered=2)),
        "2 events of jobq 0.1, which have no numbers",
    ),
    "a hole without marks": (
        queue(log(marks={}, ahead=((11, 12),), last=12)),
        "missing: 10; without marks of a relay, these may be late or lost",
    ),
    "a hole without marks, in one of two shards": (
        queue(LOG, log(marks={}, ahead=((11, 12),), last=12, shard=1)),
        "missing: 10 in shard 1 of log log; without marks of a relay, these may be late or lost",
    ),
    "a hole above the mark": (queue(log(ahead=((11, 12),), last=12)), None),
    "no hole, without marks": (queue(log(marks={})), None),
    "a hole that was filled": (
        queue(log(refilled=3)),
        "3 events arrived after they were reported as lost: audit with --full",
    ),
    "a store that is ahead": (
        queue(ends=(("log", 0, 12), ("log", 1, 2))),
        "the lake is 5 events behind the store: run the pipeline and audit again",
    ),
    "a store that is not ahead": (queue(ends=(("log", 0, 9),)), None),
    "a store that was ahead in one shard, and behind in another": (
        queue(LOG, log(shard=1), ends=(("log", 0, 12), ("log", 1, 2))),
        "the lake is 3 events behind the store: run the pipeline and audit again",
    ),
    "no events": (QueueAudit(totals=totals(accepted=0)), "no event has reached the lake"),
    "no events of a store that has some": (
        QueueAudit(totals=totals(accepted=0), ends=(("log", 0, 2),)),
        "the lake is 2 events behind the store: run the pipeline and audit again",
    ),
    "a gap": (queue(log(gaps=(GAP,))), None),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubt_makes_a_queue_unprovable(name: str) -> None:
    found, doubt = DOUBTS[name]
    found = msgspec.structs.replace(found, totals=_balanced(found.totals))
    assert found.doubts == ([doubt] if doubt else [])
    assert found.verdict == ("unprovable" if doubt else "proved")
    assert Audit(queues=(found,)).exit_code == (2 if doubt else 0)


def _balanced(of: QueueTotals) -> QueueTotals:
    """The counts of a queue without lives, if they are not the usual ones."""
    return of if of.accepted else QueueTotals(tenant=of.tenant, queue=of.queue)


def test_a_problem_is_worse_than_a_doubt() -> None:
    both = queue(log(twice=1), quarantined=1)
    assert (both.verdict, len(both.doubts)) == ("violated", 1)


@pytest.mark.parametrize(
    ("logs", "exceptions"),
    [
        ([LOG], []),
        ([log(gaps=(GAP,))], ["except 3–4, dropped unread on 2025-11-15 00:00:00"]),
        ([log(gaps=(SPARE,))], ["except 1–2, removed by retention"]),
        (
            [LOG, log(shard=1, gaps=(SPARE,))],
            ["except 1–2 in shard 1 of log log, removed by retention"],
        ),
        (
            [log(gaps=(SPARE,) * 5)],
            [*["except 1–2, removed by retention"] * 3, "and 2 more gaps"],
        ),
        ([log(gaps=(SPARE,) * 3)], ["except 1–2, removed by retention"] * 3),
        ([log(ahead=((11, 12),), last=12)], ["not here yet: 10"]),
        (
            [LOG, log(shard=1, ahead=((11, 12),), last=12)],
            ["not here yet: 10 in shard 1 of log log"],
        ),
        ([log(ahead=((11, 12),), last=12, marks={})], []),
    ],
)
def test_what_a_proof_leaves_out_is_named(logs: list[LogProof], exceptions: list[str]) -> None:
    assert queue(*logs).exceptions == exceptions


@pytest.mark.parametrize(
    ("found", "reach"),
    [
        (queue(), "up to 9, the lake's end"),
        (queue(log(proved=1_000)), "up to 1,000, the lake's end"),
        (queue(store=store(), ends=(("log", 0, 9),)), "up to 9, the store's end"),
        (queue(store=store(at(12)), ends=(("log", 0, 12),)), "up to 9, the lake's end"),
        (queue(LOG, log(shard=1)), "up to the lake's end"),
        (queue(LOG, log(shard=1), store=store()), "up to the store's end"),
    ],
)
def test_an_audit_says_how_far_it_goes(found: QueueAudit, reach: str) -> None:
    assert found.reach == reach


@pytest.mark.parametrize(
    ("found", "quiet"),
    [
        (queue(), False),
        (queue(store=store()), True),
        (queue(store=store(at(10))), False),
        (queue(store=store(at(9), at(1, shard=1))), False),
        (queue(LOG, log(shard=1), store=store(at(9), at(9, shard=1))), True),
        (queue(store=store(), totals=totals(unnumbered=1)), True),
        (queue(log(gaps=(GAP,)), store=store()), False),
    ],
)
def test_a_queue_is_quiet_if_the_lake_has_all_of_its_log(found: QueueAudit, quiet: bool) -> None:
    assert found.quiet is quiet


PROVED, VIOLATED, UNPROVABLE = queue(), queue(log(twice=1)), queue(quarantined=1)


@pytest.mark.parametrize(
    ("queues", "stray", "verdict", "code"),
    [
        ((), 0, "unprovable", 2),
        ((PROVED, PROVED), 0, "proved", 0),
        ((PROVED, UNPROVABLE), 0, "unprovable", 2),
        ((PROVED, UNPROVABLE, VIOLATED), 0, "violated", 1),
        ((PROVED,), 1, "unprovable", 2),
        ((VIOLATED,), 1, "violated", 1),
    ],
)
def test_the_verdict_is_the_worst_of_all_queues(
    queues: tuple[QueueAudit, ...], stray: int, verdict: str, code: int
) -> None:
    found = Audit(queues=queues, stray=stray)
    assert (found.verdict, found.exit_code) == (verdict, code)


def test_the_summary_has_everything_that_the_verdict_rests_on() -> None:
    one = queue(
        log(lost=((2, 3), (5, 5)), gaps=(SPARE,)),
        quarantined=4,
        compared=7,
        ends=(("log", 0, 12),),
        totals=totals(unnumbered=1),
    )
    found = Audit(queues=(one,), full=False, at_ms=5, events=6, stray=2, previous="proved")
    summary = found.summary()
    (described,) = summary.pop("queues")
    assert summary == {
        "verdict": "violated",
        "previous": "proved",
        "at_ms": 5,
        "read": "what arrived since the last audit",
        "events": 6,
        "quarantined_without_queue": 2,
    }
    assert Audit(queues=()).summary()["read"] == "everything"
    counts = msgspec.to_builtins(one.totals)
    assert described == {
        **counts,
        "verdict": "violated",
        "problems": ["3 × lost: 2–3, 5"],
        "doubts": [
            "4 records in quarantine",
            "1 events of jobq 0.1, which have no numbers",
            "the lake is 3 events behind the store: run the pipeline and audit again",
        ],
        "exceptions": ["except 1–2, removed by retention"],
        "reach": "up to 9, the lake's end",
        "behind": 3,
        "quarantined": 4,
        "compared_with_store": 7,
        "held": 2,
        "lost": 3,
        "logs": [
            {
                "log": "log",
                "shard": 0,
                "proved": 9,
                "last": 9,
                "shipped": 9,
                "lost": ((2, 3), (5, 5)),
            }
        ],
    }
