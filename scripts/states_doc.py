"""Write docs/states.md from core/records/states.py, so that the page always matches the code.

python scripts/states_doc.py           write the page
python scripts/states_doc.py --check   exit 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from jobq.core.records.states import TRANSITIONS, QueueKind, State

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"

MEANINGS = {
    State.DELAYED: "due later: a delay, the backoff of a retry, or a snooze",
    State.BLOCKED: "waits for jobs it depends on, for its children, for a signal, or, as the"
    " follow-up of a unique job, for that job to end",
    State.WAITING: "ready to be claimed by a worker",
    State.ACTIVE: "leased to a worker that is executing it",
    State.COMPLETED: "ended: the handler returned",
    State.FAILED: "ended: out of retries, rejected, stalled or expired, or a child failed."
    " Failed jobs are the dead letters of their queue",
    State.CANCELLED: "ended: cancelled, removed or replaced",
}

DONE_TO_QUEUES = {
    QueueKind.PAUSED: "the queue was paused",
    QueueKind.RESUMED: "the queue was resumed",
    QueueKind.LIMITS: "limits were changed at run time, or declared with a higher"
    " `limits_version`; the reason lists them",
    QueueKind.HELD: "the queue or a key was held; the reason says which, and for how long",
    QueueKind.RELEASED_HOLD: "a hold was lifted",
    QueueKind.CLEARED: "jobs that had not started were cancelled; the reason says how many",
    QueueKind.PURGED: "records of ended jobs were removed; the reason says how many",
    QueueKind.SCHEDULE: "a schedule was stored, removed, paused or resumed; the reason says which",
    QueueKind.MISSED: "a schedule enqueued no job: no worker ran when it was due, or the queue"
    " was full; the reason is `schedule@milliseconds`",
    QueueKind.OBLITERATED: "the queue was removed with everything in it except its log",
    QueueKind.RELEASED_LOCK: "a unique lock was released before its job ended, or before its period"
    " was over; the reason is the id of the job",
}


def page() -> str:
    """The whole page."""
    return "\n".join(
        [*_head(), "", *_states(), "", *_diagram(), "", *_table(), "", *_done_to_queues(), ""]
    )


def _head() -> Iterator[str]:
    yield "# States"
    yield ""
    yield "<!-- scripts/states_doc.py writes this page from core/records/states.py. -->"
    yield ""
    yield "A job is always in one of seven states. This page lists every legal transition between"
    yield "them. Every store obeys the table and records each transition as an event of that kind."
    yield "The conformance suite checks the recorded events against it."


def _states() -> Iterator[str]:
    yield "| state | meaning |"
    yield "|---|---|"
    for state in State:
        yield f"| `{state}` | {MEANINGS[state]} |"


def _diagram() -> Iterator[str]:
    yield "![The states of a job and the usual transitions](diagrams/states.svg)"
    yield ""
    yield "The drawing shows the usual transitions. The table has all of them."


def _table() -> Iterator[str]:
    yield "| event | from | to | when |"
    yield "|---|---|---|---|"
    for step in TRANSITIONS:
        previous = "" if step.previous is None else f"`{step.previous}`"
        yield f"| `{step.kind}` | {previous} | `{step.state}` | {step.when} |"


def _done_to_queues() -> Iterator[str]:
    yield "## Events without a job"
    yield ""
    yield "Operations on a queue are recorded in the same log, in shard 0. These events have no job"
    yield "and no state. `actor` is the name that the caller gave."
    yield ""
    yield "| event | when |"
    yield "|---|---|"
    for kind in QueueKind:
        yield f"| `{kind}` | {DONE_TO_QUEUES[kind]} |"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    text = page()
    if "--check" not in arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(
        f"docs/{PAGE.name} does not match core/records/states.py: run python scripts/states_doc.py",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
