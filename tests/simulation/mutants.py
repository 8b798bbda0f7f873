"""Bugs on purpose: `make simulate-mutants` shows that the simulation finds each of them.

A mutant replaces a piece of the source of a function, or of an SQL statement, while seeds run.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from jobq.engine import exchange, fetcher, keeper, run, runner
from jobq.relay import relay
from jobq.stores.relational import (
    claim,
    flows,
    limits,
    put,
    schedules,
    settle,
    signals,
    upkeep,
)
from jobq.stores.sqlite.statements import COLUMNS, SQL
from jobq.stores.sqlite.tx import SqliteTx
from tests.simulation.seeds import run_seed

MOST_SEEDS = 1000
"""Seeds within which every mutant must be found."""


class Edit(NamedTuple):
    """A function, and the text in it that is replaced."""

    owner: Any
    function: str
    old: str
    new: str


class Statement(NamedTuple):
    """An SQL statement, and the text in it that is replaced."""

    statements: dict[str, str]
    name: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A bug, and how to make it."""

    name: str
    edits: tuple[Edit | Statement, ...]


def edited(edit: Edit) -> Callable[..., Any]:
    """The function with another text."""
    original = inspect.unwrap(inspect.getattr_static(edit.owner, edit.function))
    source = textwrap.dedent(inspect.getsource(original))
    if edit.old not in source:
        raise LookupError(f"{edit.function} has no {edit.old!r}: update the mutant")
    module = sys.modules[original.__module__]
    made: dict[str, Any] = {}
    text = "from __future__ import annotations\n" + source.replace(edit.old, edit.new, 1)
    exec(compile(text, f"<mutant of {edit.function}>", "exec"), module.__dict__, made)
    found: Callable[..., Any] = made[edit.function]
    return found


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Everything inside has the bug."""
    with ExitStack() as stack:
        for edit in mutant.edits:
            if isinstance(edit, Statement):
                before = edit.statements[edit.name]
                if edit.old not in before:
                    raise LookupError(f"{edit.name} has no {edit.old!r}: update the mutant")
                after = before.replace(edit.old, edit.new, 1)
                stack.enter_context(patch.dict(edit.statements, {edit.name: after}))
            else:
                before_edit, made = getattr(edit.owner, edit.function), edited(edit)
                stack.enter_context(patch.object(edit.owner, edit.function, made))
                # The table that upkeep walks through has the functions themselves.
                by_clock = tuple(
                    (name, made if act is before_edit else act) for name, act in upkeep._BY_CLOCK
                )
                stack.enter_context(patch.object(upkeep, "_BY_CLOCK", by_clock))
        yield


def found_by(mutant: Mutant, seeds: int = MOST_SEEDS) -> tuple[int, str] | None:
    """The first seed that finds the mutant, and what it reports."""
    with applied(mutant):
        for seed in range(seeds):
            problems = run_seed(seed, twice=False).problems
            if problems:
                return seed, problems[0]
    return None


MUTANTS = (
    Mutant(
        "an outcome needs no valid token",
        (Edit(settle, "_settle", "or job.token != outcome.token", ""),),
    ),
    Mutant(
        "a lease of another claim is renewed",
        (Statement(SQL.hot, "extend", "AND token = ?", "AND ? != ''"),),
    ),
    Mutant(
        "a call that is executed again later reuses its tokens",
        (
            Edit(claim, "_claim_from", "token_of(job, suffix)", 'f"{job.pk}{suffix}"'),
            Edit(claim, "_claim_keyed", "token_of(head, suffix)", 'f"{head.pk}{suffix}"'),
            Edit(claim, "_record", "{pk}.{life}.{attempt}{suffix}", "{pk}{suffix}"),
            *(
                Statement(SQL.hot, name, COLUMNS[token], "pk")
                for name, token in (
                    ("claim_plain", "new_token"),
                    ("claim_these", "new_token"),
                    ("claimed_by_call", "token"),
                )
            ),
        ),
    ),
    Mutant(
        "a repeated exchange is executed again",
        (Edit(SqliteTx, "repeated", "self.memory.calls.get(caller, call) != call", "True"),),
    ),
    Mutant(
        "the engine gives each try of an exchange another name",
        (
            Edit(
                exchange.Exchange,
                "ask",
                "outcomes, worker=self._worker, call=call, then=claim",
                "outcomes, worker=self._worker, call=self._name_call(), then=claim",
            ),
        ),
    ),
    Mutant(
        "the keeper renews nothing",
        (Edit(keeper.Renewer, "renew", "await self._renew(", "len("),),
    ),
    Mutant(
        "slots without a job are not given back",
        (Edit(fetcher.Fetcher, "_trade", "self._slots.give(free)", "pass"),),
    ),
    Mutant(
        "a run that ends does not free its slot",
        (Edit(runner.Runner, "_freed", "self._slots.give(1)", "pass"),),
    ),
    Mutant(
        "sleeping workers are not woken",
        (Edit(signals, "notify", "_wake(tx, queue, n)", "pass"),),
    ),
    Mutant(
        "a due job is promoted twice",
        (
            Edit(
                upkeep,
                "_promote",
                "waiting.when_due(tx, job, Kind.PROMOTED)",
                "(waiting.when_due(tx, job, Kind.PROMOTED), "
                "waiting.when_due(tx, job, Kind.PROMOTED))",
            ),
        ),
    ),
    Mutant(
        "expired leases are not recovered",
        (Statement(SQL.hot, "stalled", "WHERE", "WHERE 0 AND"),),
    ),
    Mutant(
        "a stall does not count",
        (Edit(upkeep, "stall", "job.stalls += 1", "pass"),),
    ),
    Mutant(
        "a queue's limit is one too high",
        (
            Edit(
                limits,
                "starts_left",
                "effective.limit - tx.count(queue, ACTIVE)",
                "effective.limit + 1 - tx.count(queue, ACTIVE)",
            ),
        ),
    ),
    Mutant(
        "a completed job does not free its key",
        (Edit(settle, "_complete", "tx.keys_moved(qid, keys, 0, -1)", "pass"),),
    ),
    Mutant(
        "a unique lock is not looked at",
        (Edit(put, "_put_one", "if spec.unique is not None:", "if False:"),),
    ),
    Mutant(
        "a parent waits for one child only",
        (Edit(flows, "waits", "return ", "return False and "),),
    ),
    Mutant(
        "a schedule fires once too often",
        (Edit(schedules, "_fire", "made = int(not each.skipped)", "made = 0"),),
    ),
    Mutant(
        "a step continues before it is recorded",
        (
            Edit(
                run.Run,
                "keep",
                "state = await self.notes.add(self.ref, part)",
                "import asyncio; "
                "asyncio.ensure_future(self.notes.add(self.ref, part)); "
                "state = 'held'",
            ),
        ),
    ),
    Mutant(
        "a handler starts after its lease has ended",
        (
            Edit(run.Run, "check", "if not self.late:", "if True:"),
            Edit(fetcher.Fetcher, "_still_held", 'if state != "lost"', ""),
        ),
    ),
    Mutant(
        "dead letters are copied twice",
        (
            Edit(
                put,
                "copy_to_dead_letters",
                "_copy_one(tx, queue, job, number)",
                "(_copy_one(tx, queue, job, number), _copy_one(tx, queue, job, number + 1))",
            ),
        ),
    ),
    Mutant(
        "the relay acknowledges what the target refused",
        (
            Edit(
                relay._QueueShipper,
                "_ship",
                "self._note(problem=str(e))\n        relay.outage.failed",
                "await relay.store.ack_events(self.queue, relay.name, page.position); "
                "self.position = page.position\n        relay.outage.failed",
            ),
        ),
    ),
)


def main() -> int:
    """Search for each mutant, and print when it is found. Returns 1 if one is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    options = parser.parse_args()
    missed = 0
    for mutant in (each for each in MUTANTS if options.only in each.name):
        began = time.monotonic()
        found = found_by(mutant, options.seeds)
        took = time.monotonic() - began
        if found is None:
            missed += 1
            print(f"NOT FOUND in {options.seeds} seeds: {mutant.name} ({took:.0f} s)", flush=True)
        else:
            print(f"seed {found[0]:>4}: {mutant.name}: {found[1][:110]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
