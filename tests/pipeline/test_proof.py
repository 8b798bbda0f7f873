"""The rules of a proof, and its ranges of numbers. No Spark."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest

from jobq.core.records.event_log import before
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.core.records.states import State
from jobq.pipeline.audit import number_sets
from jobq.pipeline.audit.proof import (
    MAX_RANGES,
    Arrived,
    Gap,
    GapEvent,
    LogProof,
    Proof,
    QueueTotals,
    advanced,
    checked,
    kept_from,
)
from jobq.pipeline.audit.removed import Removed, plus
from jobq.pipeline.audit.store import Tip, contradiction
from jobq.pipeline.audit.verdict import post, prometheus
from jobq.pipeline.lake import LakeState

KEY: dict[str, Any] = {"tenant": "acme", "queue": "mail", "log": "log", "shard": 0}
EMPTY = LogProof(**KEY)


def marked(number: int) -> dict[int, dict[int, int]]:
    """A mark in the only partition."""
    return {1: {0: number}}


def test_a_prefix_without_holes_is_proved_up_to_its_end() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 7)]))
    assert (log.proved, log.lost, log.waiting) == (7, (), [])


def test_without_marks_the_first_number_is_not_here_yet() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(2, 7)]))
    assert (log.proved, log.lost, log.waiting) == (0, (), [(1, 1)])


def test_a_hole_below_the_mark_is_lost_and_the_proof_goes_on() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 3), (5, 9)], marks=marked(9)))
    assert (log.proved, log.lost, log.ahead) == (9, ((4, 4),), ())


def test_a_hole_above_the_mark_is_not_here_yet() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 3), (5, 9)], marks=marked(3)))
    assert (log.proved, log.lost, log.ahead, log.waiting) == (3, (), ((5, 9),), [(4, 4)])
    log = advanced(log, Arrived(numbers=[(4, 4)]))
    assert (log.proved, log.ahead, log.last) == (9, (), 9)


def test_a_hole_across_the_mark_is_lost_below_it_and_waits_above() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 3), (9, 9)], marks=marked(5)))
    assert (log.proved, log.lost, log.waiting) == (5, ((4, 5),), [(6, 8)])


def test_what_was_shipped_is_the_lowest_mark_over_all_partitions() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 3), (5, 9)], marks={2: {0: 9}}))
    assert (log.shipped, log.lost) == (0, ())
    log = advanced(log, Arrived(marks={2: {1: 4}}))
    assert (log.shipped, log.lost, log.proved) == (4, ((4, 4),), 9)
    log = advanced(log, Arrived(marks={4: dict.fromkeys(range(4), 12)}))
    assert (log.shipped, log.lost) == (12, ((4, 4), (10, 12)))


def test_a_gap_excuses_its_own_numbers_back_to_the_last_mark() -> None:
    new = Arrived(
        numbers=[(1, 3), (9, 9)],
        gaps=[GapEvent(number=8, at_ms=5, why="dropped")],
        marked=[4, 8],  # the relay also marks what the gap ends with
        marks=marked(9),
    )
    log = advanced(EMPTY, new)
    assert (log.lost, log.proved) == (((4, 4),), 9)
    assert log.gaps == (Gap(first=5, last=8, at_ms=5, why="dropped"),)


def test_a_record_in_quarantine_is_neither_lost_nor_proved() -> None:
    new = Arrived(numbers=[(1, 3), (5, 5)], quarantined=[(4, 4)], marks=marked(5))
    log = advanced(EMPTY, new)
    assert (log.lost, log.gaps[0].why, log.proved) == ((), "in quarantine", 5)


def test_another_event_under_a_proved_number_counts_and_one_that_was_lost_does_not() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 3), (5, 9)], marks=marked(9)))
    log = advanced(log, Arrived(numbers=[(1, 2), (4, 4)]))
    assert (log.twice, log.refilled, log.lost) == (2, 1, ())
    log = advanced(log, Arrived(numbers=[(9, 9)], twice=3))
    assert (log.twice, log.refilled) == (6, 1)


def test_a_gap_may_be_one_number_and_does_not_excuse_what_an_earlier_audit_saw_marked() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 3)], marks={2: {0: 5}}))
    assert (log.proved, log.marked) == (3, 5)
    new = Arrived(
        numbers=[(8, 9), (11, 12)],
        gaps=[GapEvent(number=number, at_ms=5, why="dropped") for number in (7, 10)],
        marked=[12],
        marks={2: {0: 12, 1: 12}},
    )
    log = advanced(log, new)
    assert log.lost == ((4, 5),)
    assert [(gap.first, gap.last) for gap in log.gaps] == [(6, 7), (10, 10)]


def test_a_gap_excuses_no_hole_before_or_after_it() -> None:
    new = Arrived(
        numbers=[(1, 3), (5, 9), (15, 20), (22, 30)],
        gaps=[GapEvent(number=14, at_ms=5, why="dropped")],
        marks=marked(30),
    )
    log = advanced(EMPTY, new)
    assert log.lost == ((4, 4), (21, 21))
    assert log.gaps == (Gap(first=10, last=14, at_ms=5, why="dropped"),)


def test_a_gap_and_a_record_in_quarantine_beyond_what_is_proved_are_remembered_once() -> None:
    gap = GapEvent(number=20, at_ms=5, why="dropped")
    new = Arrived(
        numbers=[(1, 10), (21, 22), (24, 30)],
        gaps=[gap],
        quarantined=[(23, 23)],
        marked=[14],
        marks={2: {0: 14}},
    )
    log = advanced(EMPTY, new)
    assert (log.proved, log.waiting[0]) == (10, (11, 14))
    # The audit reads events that wait again, but not what is in quarantine.
    log = advanced(log, Arrived(numbers=[(11, 14), (21, 22), (24, 30)], gaps=[gap], marked=[30]))
    log = advanced(log, Arrived(marks={2: {0: 30, 1: 30}}))
    assert (log.proved, log.lost, log.twice) == (30, (), 0)
    assert [(gap.first, gap.last, gap.why) for gap in log.gaps] == [
        (15, 20, "dropped"),
        (23, 23, "in quarantine"),
    ]


def test_what_retention_removed_before_the_first_audit_is_not_lost() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(70, 90)], marks=marked(90), kept_from=80))
    assert (log.lost, log.gaps[0].first, log.gaps[0].last) == ((), 1, 69)


def test_retention_excuses_no_number_from_the_first_kept_one_on() -> None:
    new = Arrived(numbers=[(70, 79), (85, 90)], marks=marked(90), kept_from=82)
    log = advanced(EMPTY, new)
    assert (log.lost, [(gap.first, gap.last) for gap in log.gaps]) == (
        ((82, 84),),
        [(1, 69), (80, 81)],
    )
    log = advanced(EMPTY, msgspec.structs.replace(new, kept_from=80))
    assert (log.lost, [(gap.first, gap.last) for gap in log.gaps]) == (((80, 84),), [(1, 69)])


def test_what_is_lost_later_is_not_excused_by_an_old_retention() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(70, 90)], marks=marked(90), kept_from=80))
    log = advanced(log, Arrived(numbers=[(95, 99)], marks=marked(99)))
    assert log.lost == ((91, 94),)


def test_retention_excuses_exactly_the_numbers_that_it_has_removed() -> None:
    new = Arrived(numbers=[(70, 79), (85, 90)], marks=marked(90), removed=[(1, 9), (12, 82)])
    log = advanced(EMPTY, new)
    assert (log.lost, log.proved) == (((10, 11), (83, 84)), 90)
    assert [(gap.first, gap.last) for gap in log.gaps] == [(1, 9), (12, 69), (80, 82)]
    # The next audit gets the same numbers, and a later hole is lost.
    log = advanced(log, Arrived(numbers=[(95, 99)], marks=marked(99), removed=new.removed))
    assert (log.lost[-1], len(log.gaps)) == ((91, 94), 3)


def test_a_gap_that_retention_has_kept_excuses_what_is_not_removed() -> None:
    gap = GapEvent(number=8, at_ms=5, why="dropped")
    log = advanced(EMPTY, Arrived(numbers=[(9, 9)], gaps=[gap], removed=[(1, 5)], marks=marked(9)))
    assert (log.lost, log.proved) == ((), 9)
    assert [(gap.first, gap.last, gap.why) for gap in log.gaps] == [
        (1, 5, "removed by retention"),
        (6, 8, "dropped"),
    ]


LOG, OTHER = ("acme", "mail", "log", 0), ("acme", "mail", "log", 1)


def test_removed_numbers_add_up_and_a_removed_gap_takes_its_own_with_it() -> None:
    once = plus(Removed(before="2025-01-01"), {LOG: [(1, 3), (5, 9)]}, {})
    twice = plus(once, {LOG: [(10, 20), (31, 40)], OTHER: [(4, 4)]}, {LOG: [30, 20], OTHER: [3]})
    assert twice.before == "2025-01-01"
    assert twice.numbers == {LOG: ((1, 3), (5, 40)), OTHER: ((1, 4),)}
    assert msgspec.json.decode(msgspec.json.encode(twice), type=Removed) == twice


@pytest.mark.parametrize("found", [1, MAX_RANGES, MAX_RANGES + 1, 3 * MAX_RANGES])
def test_the_ranges_of_removed_numbers_are_bounded_and_the_last_ones_stay_exact(
    found: int,
) -> None:
    every = [(n, n) for n in range(1, 2 * found, 2)]
    kept = plus(Removed(), {LOG: every}, {}).numbers[LOG]
    assert len(kept) == min(found, MAX_RANGES)
    assert kept[1:] == tuple(every[len(every) - len(kept) + 1 :])
    assert (kept[0][0], kept[-1][1]) == (1, 2 * found - 1)


@pytest.mark.parametrize(
    ("before", "old", "day"),
    [
        (None, None, None),
        ("2025-11-17", None, "2025-11-17"),  # everything is read
        ("2025-11-17", Proof(), "2025-11-17"),  # removed since the last audit
        ("2025-11-17", Proof(horizon="2025-11-16"), "2025-11-17"),
        ("2025-11-17", Proof(horizon="2025-11-17"), None),  # the last audit has excused them
        ("2025-11-17", Proof(horizon="2025-11-18"), None),
        (None, Proof(horizon="2025-11-18"), None),
    ],
)
def test_numbers_removed_without_a_record_are_excused_by_time_in_one_audit(
    before: str | None, old: Proof | None, day: str | None
) -> None:
    assert Removed(before=before).unrecorded(old) == day


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LakeState(), LakeState(horizon="2025-11-17")),
        (LakeState(horizon="2025-11-17"), LakeState(horizon="2025-11-17", removed="a")),
        # A late event of a removed day may be removed again.
        (
            LakeState(horizon="2025-11-17", removed="a"),
            LakeState(horizon="2025-11-17", removed="b"),
        ),
        (
            LakeState(horizon="2025-11-17", retiring="2025-11-17", removed="a"),
            LakeState(horizon="2025-11-17", removed="a"),
        ),
    ],
)
def test_what_retention_has_kept_has_another_name_after_each_removal(
    one: LakeState, other: LakeState
) -> None:
    assert one.kept != other.kept


HOUR = 3_600_000


@pytest.mark.parametrize(
    ("settled", "highest", "known", "settled_ms", "first"),
    [
        (25, 40, None, None, 1),  # nothing was removed since the last audit
        (25, 40, None, HOUR, 25),
        (None, 0, None, HOUR, 1),
        (None, 40, None, HOUR, 41),  # all events in the lake are old
        (None, 0, {"proved": 50, "last": 50, "last_at_ms": HOUR - 1}, HOUR, 51),  # an idle queue
        (None, 0, {"proved": 50, "last": 50, "last_at_ms": HOUR}, HOUR, 50),  # it was not idle
        (None, 60, {"proved": 50, "last": 60, "last_at_ms": 0}, HOUR, 61),
        (70, 80, {"proved": 50, "last": 55, "last_at_ms": HOUR}, HOUR, 55),
        (70, 80, {"proved": 50, "last": 55, "last_at_ms": 5}, HOUR, 70),
    ],
)
def test_retention_cannot_have_removed_what_is_younger_than_the_first_kept_day(
    settled: int | None,
    highest: int,
    known: dict[str, int] | None,
    settled_ms: int | None,
    first: int,
) -> None:
    log = None if known is None else msgspec.structs.replace(EMPTY, **known)
    assert kept_from(settled, highest, log, settled_ms) == first


def test_a_proof_knows_the_time_of_its_last_event() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 9)], last_at_ms=7))
    assert log.last_at_ms == 7
    log = advanced(log, Arrived(numbers=[(4, 4)], last_at_ms=3))
    assert log.last_at_ms == 7
    assert advanced(log, Arrived(numbers=[(10, 10)], last_at_ms=8)).last_at_ms == 8


@pytest.mark.parametrize("holes", [MAX_RANGES - 1, MAX_RANGES, MAX_RANGES + 1, 3 * MAX_RANGES])
def test_the_ranges_that_a_proof_keeps_are_bounded_and_contain_every_lost_number(
    holes: int,
) -> None:
    numbers = [(n, n) for n in range(3, 3 * holes + 1, 3)]  # two of three are lost
    log = advanced(EMPTY, Arrived(numbers=numbers, marks=marked(3 * holes)))
    kept = min(holes, MAX_RANGES)
    assert log.lost[:-1] == tuple((n, n + 1) for n in range(1, 3 * (kept - 1), 3))
    assert log.lost[-1] == (3 * kept - 2, 3 * holes - 1)


def test_a_log_that_was_altered_stays_so_until_its_rows_are_restored() -> None:
    proved = checked(LogProof(**KEY, proved=5), digest=0b1010, seen=0, known=None)
    assert (proved.digest, proved.altered) == (0b1010, False)
    # Audits of everything: one event has changed, and later another one arrives.
    once = checked(LogProof(**KEY, proved=5), digest=0b1011, seen=0b1011, known=proved)
    again = checked(LogProof(**KEY, proved=6), digest=0b1111, seen=0b1011, known=once)
    assert (once.altered, again.altered) == (True, True)
    restored = checked(LogProof(**KEY, proved=6), digest=0b1110, seen=0b1110, known=again)
    assert (restored.digest, restored.altered) == (0b1110, False)
    # An audit of what is new adds its events, and keeps the finding.
    later = checked(again, digest=0b10000, seen=0, known=None)
    assert (later.digest, later.altered) == (again.digest ^ 0b10000, True)


@pytest.mark.parametrize("fields", [{"twice": 1}, {"refilled": 1}])
def test_a_log_with_more_than_one_event_per_number_has_no_checksum_to_compare(
    fields: dict[str, Any],
) -> None:
    known = LogProof(**KEY, proved=5, digest=7, **fields)
    assert not checked(LogProof(**KEY), digest=8, seen=8, known=known).altered


def test_tombstones_span_from_the_first_to_the_last() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 9)], erased=[(4, 6)]))
    assert log.erased == ((4, 6),)
    log = advanced(log, Arrived(numbers=[(10, 19)], erased=[(12, 15)]))
    assert advanced(log, Arrived()).erased == ((4, 15),)


def test_counts_of_two_audits_are_added() -> None:
    one = QueueTotals(tenant="a", queue="q", events=3, states={"waiting": 2, "active": 1})
    two = QueueTotals(tenant="a", queue="q", events=4, states={"waiting": -1, "failed": 1})
    assert one + two == QueueTotals(
        tenant="a", queue="q", events=7, states={"waiting": 1, "active": 1, "failed": 1}
    )


def test_an_audit_of_everything_misses_what_was_proved_before() -> None:
    log = advanced(EMPTY, Arrived(numbers=[(1, 3), (5, 9)], proved=9))
    assert (log.lost, log.proved) == (((4, 4),), 9)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_sets(seed: int) -> None:
    rng = random.Random(seed)
    one = {rng.randrange(400) for _ in range(rng.randrange(300))}
    other = {rng.randrange(400) for _ in range(100)}
    words: dict[int, int] = {}
    for number in one:
        words[number // 64] = words.get(number // 64, 0) | 1 << number % 64
    signed = [(i, m - (1 << 64) if m >> 63 else m) for i, m in words.items()]
    a, b = number_sets.of_words(signed), number_sets.union((n, n) for n in other)
    assert numbers(a) == one
    assert numbers(number_sets.minus(a, b)) == one - other
    assert numbers(number_sets.both(a, b)) == one & other
    assert number_sets.size(a) == len(one)
    assert all(x[1] + 1 < y[0] for x, y in itertools.pairwise(a))


def numbers(found: number_sets.Ranges) -> set[int]:
    return {number for first, last in found for number in range(first, last + 1)}


def test_ranges_as_people_write_them() -> None:
    assert number_sets.text([(1204, 1377), (1400, 1400)]) == "1,204–1,377, 1,400"
    assert number_sets.text([(n, n) for n in range(1, 11, 2)]) == "1, 3, 5 and 2 more ranges"


@pytest.mark.parametrize(
    ("position", "earlier"),
    [
        ("7", "6"),
        ("7-3,0", "7-2,0"),
        ("7-0", "6-999999999999999999"),
        ("0", "0"),
    ],
)
def test_the_position_before_an_entry(position: str, earlier: str) -> None:
    assert before(position) == earlier


TIP = Tip("acme", "mail", "a", life=0, attempt=1, state="completed", name="send", created_ms=5)
RECORD = JobRecord(
    queue=QueueName("acme", "mail"),
    id="a",
    name="send",
    state=State.COMPLETED,
    payload=b"",
    attempt=1,
    created_ms=5,
)


@pytest.mark.parametrize(
    ("tip", "record", "quiet", "busy"),
    [
        ({}, {}, False, False),
        ({}, None, False, False),
        ({"state": "waiting"}, None, True, False),
        ({"state": "waiting"}, {}, True, False),
        ({}, {"state": State.FAILED}, True, True),
        ({}, {"name": "other"}, True, True),
        ({}, {"attempt": 2}, True, True),
        ({"state": "waiting"}, {"state": State.WAITING, "attempt": 2}, True, False),
        ({"life": 1}, {}, True, True),
        ({}, {"life": 1, "state": State.WAITING}, True, False),
        ({}, {"created_ms": 6, "state": State.WAITING}, True, False),
        ({}, {"created_ms": 4}, True, True),
    ],
)
def test_only_what_no_later_event_explains_contradicts_a_busy_store(
    tip: dict[str, object], record: dict[str, object] | None, quiet: bool, busy: bool
) -> None:
    job = TIP._replace(**tip)  # type: ignore[arg-type]
    held = None if record is None else msgspec.structs.replace(RECORD, **record)
    assert (contradiction(job, held, quiet=True) is not None) == quiet
    assert (contradiction(job, held, quiet=False) is not None) == busy


class Receiver(HTTPServer):
    """Answers with the next of `codes` and keeps what it got."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.got = list(codes), list[bytes]()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.codes.pop(0))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    server = Receiver(*request.param)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("receiver", "problem"),
    [((200,), None), ((503, 200), None), ((404,), "HTTP 404"), ((500, 500, 500), "HTTP 500")],
    indirect=["receiver"],
)
def test_an_alert_is_tried_three_times_and_never_raises(
    receiver: Receiver, problem: str | None
) -> None:
    url = f"http://127.0.0.1:{receiver.server_address[1]}/hook"
    why = post(url, {"verdict": "violated"}, pause=lambda _: None)
    assert (why or "").startswith(problem or "")
    assert (why is None) == (problem is None)
    assert receiver.codes == []
    assert json.loads(receiver.got[0]) == {"verdict": "violated"}


@pytest.mark.parametrize(
    "url", ["ftp://x/", "file:///etc/passwd", "nonsense", "http://127.0.0.1:1/"]
)
def test_an_alert_that_cannot_be_sent_says_why(url: str) -> None:
    assert post(url, {}, pause=lambda _: None)


def test_the_verdict_is_a_metric() -> None:
    text = prometheus({"verdict": "violated", "at_ms": 1500, "queues": 2})
    assert 'jobq_pipeline_audit_verdict{verdict="violated"} 1' in text
    assert 'jobq_pipeline_audit_verdict{verdict="proved"} 0' in text
    assert "jobq_pipeline_audit_timestamp_seconds 1.500" in text
