"""A task that adds children with the values of the family. Child processes import it by name."""

from __future__ import annotations

from typing import Any

from jobq import Queue, current_job
from jobq.errors import InvalidJob
from jobq_conformance.spec_values import cases
from tests.doors.options import call_of, expresses

queue = Queue("children", "memory://children", tenant="doors")

Added = list[tuple[int, str | None, str]]
"""By the number of the case: the id of the child, or None and the words of the refusal."""


def children() -> list[tuple[int, Any]]:
    """The cases of which a child can be made, with their numbers."""
    return [
        (n, case)
        for n, case in enumerate(cases())
        if expresses(case) and case.field not in ("id", "key", "unique.lock")
    ]


def _call(n: int, case: Any) -> Any:
    return call_of(queue, f"child-{n}", case)


@queue.task(retry=0)
async def adds() -> Added:
    """Add a child for every case."""
    added: Added = []
    for n, case in children():
        try:
            added.append((n, (await current_job().add(_call(n, case), n)).id, ""))
        except InvalidJob as error:
            added.append((n, None, str(error)))
    return added


@queue.task(retry=0, executor="process")
def adds_in_a_process() -> Added:
    """The same in a child process."""
    added: Added = []
    for n, case in children():
        try:
            added.append((n, current_job().sync.add(_call(n, case), n).id, ""))
        except InvalidJob as error:
            added.append((n, None, str(error)))
    return added
