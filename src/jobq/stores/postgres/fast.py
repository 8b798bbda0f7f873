"""Calls about plain jobs on plain queues: one statement, one round trip, one commit.

A queue is plain if nothing but the order of its jobs decides what a claim gets (`tx.is_plain`). A
plain job changes only its own row when it ends. Statements here lock no queue: they touch rows of
jobs that they match by token, or that no other transaction has locked, and tables that only grow.

Nothing here decides a rule. A statement that finds anything else than it assumes (a job that is due
by the clock, an id that exists, a lost lease, a repeated call) fails as a whole, and the call goes
the general way through the shared logic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from jobq.core.event_log import STATES, Item
from jobq.core.records import (
    AnyOutcome,
    Claim,
    Complete,
    JobSpec,
    Lease,
    PutResult,
    QueueName,
    Settled,
)
from jobq.stores.postgres import failures, waking
from jobq.stores.postgres.link import Link, StatementFailed
from jobq.stores.postgres.memory import Plain, PostgresMemory
from jobq.stores.postgres.queries import FAST
from jobq.stores.relational.claim import REMEMBERED, lease_of, queue_order
from jobq.stores.relational.codes import (
    DELAYED,
    ENDING,
    WAITING,
    WATCHED,
)
from jobq.stores.relational.memory import Granted
from jobq.stores.relational.new_jobs import Watch, accepted_items, new_job
from jobq.stores.relational.rows import ClaimedJob, NewJob, read
from jobq.stores.relational.settle import completed_item
from jobq.stores.relational.signals import LISTEN_MS, ended_topic
from jobq.stores.relational.tokens import caller_of, token_mark

_DOES_NOT_FIT = "22012"  # division by zero
MOST = 5_000
"""Jobs. A larger put goes the general way, which inserts them in the same manner."""

QUEUES = 10_000
"""Plain queues that a handle remembers."""

_PUT = (
    "id", "state", "priority", "at_ms", "flags", "name", "due_ms", "codec", "options", "payload",
)  # fmt: skip
"""The columns of new jobs that differ, in the order of the parameters of `put`."""

_STATEMENTS = (
    *(FAST[name] for name in ("exchange", "fall_asleep", "next_times", "wake_up")),
    waking.SQL["wake"],
)
"""What an exchange may need. To prepare one of them later would commit what is queued."""

_encode = msgspec.msgpack.Encoder().encode


class Call(NamedTuple):
    """What all calls of a handle need."""

    link: Link
    now: int
    ahead: int
    memory: PostgresMemory


# ── put ───────────────────────────────────────────────────────────────────────────────────────────


def may_put(specs: Sequence[JobSpec]) -> bool:
    """Whether new jobs are plain: of one queue, without lock, key, flow or schedule."""
    if not specs or len(specs) > MOST:
        return False
    queue = specs[0].queue
    return all(
        (spec.queue is queue or spec.queue == queue)
        and spec.key is None
        and spec.unique is None
        and not spec.after
        and spec.schedule is None
        and not spec.lifo
        for spec in specs
    )


def put(
    link: Link,
    now: int,
    ahead: int,
    memory: PostgresMemory,
    specs: Sequence[JobSpec],
    watch: Watch | None,
) -> list[PutResult] | None:
    """Put new jobs. None: the call must go the general way."""
    call = Call(link, now, ahead, memory)
    found = _plain(call, [specs[0].queue])
    if found is None:
        return None
    (plain,) = found
    rows = [new_job(plain.qid, spec, 0, now, ahead, watch) for spec in specs]
    waiting = sum(row.state == WAITING for row in rows)
    watched = [ended_topic(plain.qid, row.id) for row in rows if row.flags & WATCHED]
    columns = dict(zip(NewJob._fields, zip(*rows, strict=True), strict=True))
    parameters = (
        plain.qid, now, *(columns[name] for name in _PUT), _encode(accepted_items(rows)), waiting,
        watched, watch.address[0] if watch is not None else "", now + LISTEN_MS,
    )  # fmt: skip
    try:
        link.prepare(FAST["put"], FAST["put_again"], waking.SQL["wake"])
        link.execute(FAST["put"], parameters)
        # A job with one of these ids may have ended meanwhile: only a later statement sees that.
        link.execute(FAST["put_again"], (plain.qid, columns["id"]))
        committed = link.sync()
        soonest = min((row.due_ms or 0 for row in rows if row.state == DELAYED), default=None)
        work = (
            waking.Work(plain.qid, plain.name, waiting)
            if waiting
            else waking.Work(plain.qid, plain.name, 1, soonest)
        )
        waking.send(link, call.memory, [work], [waking.logged(plain.qid, plain.name)])
        link.flush()
        link.wait(committed)
    except StatementFailed as e:
        if failures.waited_for_row(e):  # new rows have nothing but their ids to wait for
            if any(spec.given_id for spec in specs):
                raise failures.id_or_lock_held() from e
            return None  # a repeated put of jobs that are stored: the general way finds them
        _refused(call, [plain.name], e)
        return None
    return [PutResult(id=row.id, life=0, state=STATES[row.state]) for row in rows]


# ── exchange ──────────────────────────────────────────────────────────────────────────────────────


def may_exchange(
    memory: PostgresMemory, outcomes: Sequence[AnyOutcome], wanted: Claim | None
) -> bool:
    """Whether an exchange only completes plain jobs that this handle has claimed."""
    granted = memory.granted
    return all(type(outcome) is Complete and outcome.token in granted for outcome in outcomes) and (
        bool(outcomes) or wanted is not None
    )


class _Ends(NamedTuple):
    """The completed jobs of an exchange, as the statement takes them."""

    columns: tuple[Sequence[Any], ...]
    entries: tuple[Sequence[Any], ...]
    happened: list[waking.Happened]


_NO_ENDS = _Ends(((), (), (), ()), ((), (), (), ()), [])


def exchange(
    link: Link,
    now: int,
    ahead: int,
    memory: PostgresMemory,
    outcomes: Sequence[Complete],
    worker: str,
    name: str,
    wanted: Claim | None,
    mailbox: str,
    was_asleep: bool,
) -> tuple[Settled, bool] | None:
    """Complete jobs and claim others. None: the call must go the general way.

    Also returns whether the worker is registered as asleep."""
    link.prepare(*_STATEMENTS)
    # A job may have started a little later than now: the clocks of two handles differ.
    for outcome in outcomes:
        if (job := memory.granted.get(outcome.token)) is not None:
            now = max(now, job.started_ms)
    call = Call(link, now, ahead, memory)
    if memory.calls.get(caller_of(worker, name)) == name:
        return None  # a repetition
    queues = [] if wanted is None else list(wanted.queues)
    found = _plain(call, dict.fromkeys([*queues, *(outcome.queue for outcome in outcomes)]))
    if found is None:
        return None
    plain = {queue.name: queue for queue in found}
    ends = _ends(call, outcomes, plain) if outcomes else _NO_ENDS
    if ends is None:
        return None
    claiming = _Claiming(call, worker, name, [plain[queue] for queue in queues], wanted)
    try:
        if was_asleep:
            link.execute(FAST["wake_up"], (worker,)).quiet = True
            link.sync()
        reply = link.execute(FAST["exchange"], claiming.parameters(ends, again=False))
        committed = link.sync()
        waking.send(link, memory, claiming.work(), ends.happened)
        link.flush()
        link.wait(committed)
    except StatementFailed as e:
        _refused(call, plain, e)
        return None
    if outcomes:
        memory.calls[claiming.caller] = name
    leases, late = claiming.leases(reply)
    _tell_of_ends(call, outcomes, late or ())
    if leases:
        memory.calls[claiming.caller] = name
    due, asleep = None, False
    if not leases and claiming.limit:
        leases, asleep, due = _sleep(claiming, mailbox)
    elif len(leases) < claiming.limit:
        due = claiming.next_due()
    return Settled(stale=(), leases=tuple(leases), next_due_ms=due, asleep=asleep), asleep


def _tell_of_ends(call: Call, outcomes: Sequence[Complete], late: Sequence[int]) -> None:
    """Forget the leases, and notify those who began to listen to a job's end after its claim."""
    heard = []
    for outcome in outcomes:
        job = call.memory.granted.pop(outcome.token, None)
        if job is not None and job.pk in late and not job.watched:
            heard.append(waking.ended(job.qid, outcome.queue, job.id))
    if heard:
        waking.send(call.link, call.memory, (), heard)
        call.link.flush()


def _sleep(claiming: _Claiming, mailbox: str) -> tuple[list[Lease], bool, int | None]:
    """Register a worker that found nothing, and look once more.

    Whoever puts a job from now on wakes the worker. A job that was put before is found."""
    link, memory = claiming.call.link, claiming.call.memory
    link.execute(FAST["fall_asleep"], claiming.sleeper(mailbox))
    link.sync()
    reply = link.execute(FAST["exchange"], claiming.parameters(_NO_ENDS, again=True))
    committed = link.sync()
    times = link.execute(FAST["next_times"], (claiming.qids, claiming.call.now))
    link.flush()
    try:
        link.wait(committed)
    except StatementFailed as e:
        _refused(claiming.call, [queue.name for queue in claiming.queues], e)
        return [], True, 0  # something is due by now: the worker looks again at once
    leases, _ = claiming.leases(reply)
    if leases:
        memory.calls[claiming.caller] = claiming.name
        link.discard()
        return leases, False, None
    return leases, True, claiming.until(times)


class _Claiming:
    """The claim of an exchange."""

    def __init__(
        self, call: Call, worker: str, name: str, queues: list[Plain], wanted: Claim | None
    ) -> None:
        self.call, self.worker, self.name, self.queues = call, worker, name, queues
        self.limit = 0 if wanted is None else wanted.limit
        self.expires = call.now + (0 if wanted is None else wanted.lease_ms)
        self.mark = token_mark(worker, name)
        self.caller = caller_of(worker, name)
        self.qids = [queue.qid for queue in queues]

    def parameters(self, ends: _Ends, *, again: bool) -> tuple[Any, ...]:
        """Of the statement. `again`: the call has looked before."""
        return (
            self.qids, *ends.columns, self.call.now, self.limit, self.mark, self.worker,
            self.expires, self.caller, self.name, *ends.entries, again,
        )  # fmt: skip

    def sleeper(self, mailbox: str) -> tuple[Any, ...]:
        """The parameters that register the worker as asleep."""
        return self.qids, self.worker, mailbox, self.limit, self.call.now

    def work(self) -> list[waking.Work]:
        """The queues in which more jobs may wait than this worker has room for."""
        return [waking.Work(q.qid, q.name, 1, more=True) for q in self.queues if self.limit]

    def leases(self, reply: Any) -> tuple[list[Lease], list[int] | None]:
        """The leases that the statement has granted, in the order of the queues.

        Also the numbers of completed jobs whose end has listeners."""
        found: dict[int, list[ClaimedJob]] = {}
        watched: list[int] | None = None
        for watched, qid, *columns in reply.fetchall():  # noqa: B007 - the same in all rows
            if qid is not None:
                found.setdefault(qid, []).append(read(columns, ClaimedJob))
        leases: list[Lease] = []
        due = (job.due_ms for jobs in found.values() for job in jobs)
        started = max((self.call.now, *due))
        granted = self.call.memory.granted
        if len(granted) > REMEMBERED:
            granted.clear()
        for queue in self.queues:
            for job in sorted(found.get(queue.qid, ()), key=queue_order):
                token = f"{job.pk}{self.mark}"
                if not job.flags & ENDING & ~WATCHED:
                    granted[token] = Granted(
                        queue.qid, job.pk, job.id, job.life, job.name, None, job.attempt,
                        job.failures, job.stalls, job.created_ms, job.due_ms, started, None,
                        bool(job.flags & WATCHED),
                    )  # fmt: skip
                leases.append(lease_of(queue.name, job, token, started, self.expires))
        return leases, watched

    def next_due(self) -> int | None:
        """Milliseconds until a job of the queues may become claimable by the clock; None: never."""
        return self.until(self.call.link.execute(FAST["next_times"], (self.qids, self.call.now)))

    def until(self, times: Any) -> int | None:
        """The same, of the reply."""
        row = times.fetchone()
        return None if row is None or row[0] is None else max(0, row[0] - self.call.now)


def _ends(call: Call, outcomes: Sequence[Complete], plain: dict[QueueName, Plain]) -> _Ends | None:
    now, granted = call.now, call.memory.granted
    columns: list[tuple[Any, ...]] = []
    items: dict[int, list[Item]] = {}
    runs: dict[int, int] = {}
    happened: list[waking.Happened] = []
    for outcome in outcomes:
        job = granted.get(outcome.token)
        if job is None or job.id != outcome.id:
            return None
        queue = plain[outcome.queue]
        columns.append((job.qid, job.pk, outcome.token, outcome.result))
        items.setdefault(job.qid, []).append(completed_item(job, now))
        runs[job.qid] = runs.get(job.qid, 0) + now - job.started_ms
        if job.watched:
            happened.append(waking.ended(job.qid, queue.name, job.id))
    happened += [waking.logged(queue.qid, queue.name) for queue in plain.values()]
    entries = (
        list(items), [len(each) for each in items.values()], list(runs.values()),
        [_encode(each) for each in items.values()],
    )  # fmt: skip
    return _Ends(tuple(zip(*columns, strict=True)), entries, happened)


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


def _plain(call: Call, names: Iterable[QueueName]) -> list[Plain] | None:
    """The queues of these names, if all of them are plain.

    A handle remembers them. The statements check again."""
    known = call.memory.plain
    wanted = list(names)
    missing = [name for name in wanted if name not in known]
    if missing:
        parameters = ([n.tenant for n in missing], [n.queue for n in missing], call.now)
        for tenant, name, qid in call.link.execute(FAST["plain_queues"], parameters):
            queue = QueueName(tenant, name)
            known[queue] = Plain(qid, queue)
        if len(known) > QUEUES:
            known.clear()
            return None
    found = [known.get(name) for name in wanted]
    return None if None in found else found  # type: ignore[return-value]


def _refused(call: Call, names: Iterable[QueueName], error: StatementFailed) -> None:
    """A statement has found something that it does not handle: perhaps a queue is not plain."""
    if error.sqlstate != _DOES_NOT_FIT:
        raise error
    for name in names:
        call.memory.plain.pop(name, None)
    call.link.discard()
