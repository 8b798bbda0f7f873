"""Falsifies the facts of a good run, to check that the judge finds it.

Each cheat stands for a bug of a store or of a worker. It chooses a job by its seed, changes what is
known about it, and says under which rule the judge has to find that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.faults.ledger.facts import Event, Record, Story
from tests.faults.ledger.judge import ENDS, RETURNS, Rule

Cheat = Callable[[list[Story], random.Random], None]


class Impossible(Exception):
    """The run has no job that this cheat could falsify."""


def _choose(stories: Sequence[Story], rng: random.Random, repeated: bool = False) -> Story:
    """A completed job, or one of them that ran more than once."""
    found = [
        story
        for story in stories
        if story.acked_ms is not None
        and story.record is not None
        and story.record.state == "completed"
        and (not repeated or len(story.runs) > 1)
    ]
    if not found:
        raise Impossible
    return rng.choice(found)


def _last(story: Story, kind: str) -> int:
    """The place of a job's last event of a kind."""
    return max(n for n, event in enumerate(story.events) if event.kind == kind)


def delete_an_acknowledged_job(stories: list[Story], rng: random.Random) -> None:
    """The store has lost a job with everything that happened to it, and nobody has run it."""
    story = _choose(stories, rng)
    story.record, story.events, story.runs = None, [], []


def delete_a_record(stories: list[Story], rng: random.Random) -> None:
    """The store has lost a job, but its log still tells of it."""
    _choose(stories, rng).record = None


def leave_a_job_waiting(stories: list[Story], rng: random.Random) -> None:
    """The store forgot to wake anybody: an accepted job never ran."""
    story = _choose(stories, rng)
    story.record, story.runs = Record("waiting", 0, 0), []
    story.events = [event for event in story.events if event.kind == "accepted"]


def hide_a_second_run(stories: list[Story], rng: random.Random) -> None:
    """A handler was called once more, and the log does not know it."""
    story = _choose(stories, rng)
    last = story.runs[-1]
    story.runs.append(last._replace(at_ms=last.at_ms + 500, worker="somebody-else"))


def run_a_lease_twice(stories: list[Story], rng: random.Random) -> None:
    """A worker called the handler twice for one claim."""
    story = _choose(stories, rng)
    last = story.runs[-1]
    story.runs.append(last._replace(at_ms=last.at_ms + 500))


def hide_a_stall(stories: list[Story], rng: random.Random) -> None:
    """A job was claimed again, and no event says why."""
    story = _choose(stories, rng, repeated=True)
    story.events = [event for event in story.events if event.kind not in RETURNS]


def end_without_a_run(stories: list[Story], rng: random.Random) -> None:
    """A job was completed, and no handler was called."""
    _choose(stories, rng).runs = []


def end_before_the_run(stories: list[Story], rng: random.Random) -> None:
    """A job was completed by a run that did not get to its end."""
    story = _choose(stories, rng)
    story.runs[-1] = story.runs[-1]._replace(ended_ms=None)


def complete_twice(stories: list[Story], rng: random.Random) -> None:
    """The result of a job was stored twice."""
    story = _choose(stories, rng)
    end = story.events[_last(story, "completed")]
    story.events.append(end._replace(id=f"{end.id}-again"))


def accept_a_late_report(stories: list[Story], rng: random.Random) -> None:
    """The store believed a worker whose lease had expired."""
    story = _choose(stories, rng, repeated=True)
    n = _last(story, "completed")
    story.events[n] = story.events[n]._replace(attempt=story.runs[0].attempt)


def invent_a_completion(stories: list[Story], rng: random.Random) -> None:
    """The record says completed, and the log does not."""
    story = _choose(stories, rng)
    story.events = [event for event in story.events if event.state not in ENDS]


def accept_twice(stories: list[Story], rng: random.Random) -> None:
    """A repeated call of the producer made a second job under the same id."""
    story = _choose(stories, rng)
    first = story.events[0]
    story.events.insert(1, first._replace(id=f"{first.id}-again"))


def skip_the_claim(stories: list[Story], rng: random.Random) -> None:
    """A job was completed from waiting, without a claim."""
    story = _choose(stories, rng)
    story.events = [event for event in story.events if event.kind != "started"]


def take_an_event_back(stories: list[Story], rng: random.Random) -> None:
    """The store said that a job was claimed, and does not know of it later."""
    story = _choose(stories, rng)
    claim = story.events[_last(story, "started")]
    story.undone.append(claim._replace(id=f"{claim.id}-lost"))


def set_a_time_back(stories: list[Story], rng: random.Random) -> None:
    """A job ended before it started, by the times of its events."""
    story = _choose(stories, rng)
    n = _last(story, "completed")
    started = story.events[_last(story, "started")]
    story.events[n] = story.events[n]._replace(at_ms=started.at_ms - 1)


def drop_events(stories: list[Story], rng: random.Random) -> None:
    """The log was trimmed before it was read."""
    story = _choose(stories, rng)
    first = story.events[0]
    story.events.insert(0, Event("gap", "gap", "", "", 0, 0, first.at_ms, ""))


CHEATS: dict[Cheat, set[Rule]] = {
    delete_an_acknowledged_job: {"lost"},
    delete_a_record: {"lost"},
    leave_a_job_waiting: {"unfinished"},
    hide_a_second_run: {"hidden run", "unexplained repeat"},
    run_a_lease_twice: {"unexplained repeat"},
    hide_a_stall: {"unexplained repeat"},
    end_without_a_run: {"end without a run"},
    end_before_the_run: {"end without a run"},
    complete_twice: {"two ends"},
    accept_a_late_report: {"illegal step"},
    invent_a_completion: {"wrong record"},
    accept_twice: {"illegal step"},
    skip_the_claim: {"hidden run", "illegal step"},
    take_an_event_back: {"undone"},
    set_a_time_back: {"time went back"},
    drop_events: {"gap"},
}
"""Each cheat with the rules that the judge has to report. It may report others as well."""
