"""Calls about plain jobs on plain queues: one statement, one round trip, one commit.

A queue is plain if nothing but the order of its jobs decides what a claim gets (`memory.is_plain`).
A plain job changes only its own row when it ends. Statements here lock no queue: they touch rows of
jobs that they match by token, or that no other transaction has locked, and tables that only grow.

Nothing here decides a rule. A statement that finds anything else than it assumes (a job that is due
by the clock, an id that exists, a lost lease, a repeated call) fails as a whole, and the call goes
the general way through the shared logic.

If all calls go the general way, a drain takes 1.3 to 1.6 times as long, a job of four workers that
share a queue 3.5 times, a put of one job 1.3 times, and one of four producers 1.5 times. One job
takes as long from enqueue to result (`python -m bench.postgres_paths --only exchange,put`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from jobq.core.records.event_log import STATES, Item
from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    Complete,
    JobSpec,
    Lease,
    PutResult,
    QueueName,
    Settled,
)
from jobq.stores.postgres import failures, snapshots, waking
from jobq.stores.postgres.clock import elapsed
from jobq.stores.postgres.floors import as_columns
from jobq.stores.postgres.link import Link, Reply, StatementFailed
from jobq.stores.postgres.memory import Plain, PostgresMemory, Registered
from jobq.stores.postgres.queries import FAST, FAST_WITH_FLOORS, FLOORS
from jobq.stores.relational.claim import REMEMBERED, lease_of, queue_order
from jobq.stores.relational.mailbox import Watch
from jobq.stores.relational.put import accepted_items, new_job
from jobq.stores.relational.rows import (
    DELAYED,
    ENDING,
    WAITING,
    WATCHED,
    ClaimedJob,
    NewJob,
    caller_of,
    read_all,
    token_of,
    token_suffix,
)
from jobq.stores.relational.settle import completed_item
from jobq.stores.relational.signals import LISTEN_MS, ended_topic
from jobq.stores.relational.tx import Granted

# The claim of an exchange on plain queues: its statement, its leases, and its floors.

_PREPARED_WITH_FLOORS = (
    *(FAST_WITH_FLOORS[name] for name in ("exchange", "next_times")),
    waking.SQL_WITH_FLOORS["wake"],
    FLOORS["last_seq"],
)
"""What an exchange with floors needs besides `_PREPARED`."""


class ExchangedJob(ClaimedJob, array_like=True, gc=False):
    """A row that `exchange` returns."""

    qid: int
    server_ms: int
    began_ms: int
    watched: list[int] | None  # completed jobs whose end has listeners


class Call(NamedTuple):
    """What all calls of a handle need."""

    link: Link
    now: int
    ahead: int
    memory: PostgresMemory


class Ends(NamedTuple):
    """The completed jobs of an exchange, as the statement takes them."""

    columns: tuple[Sequence[Any], ...]
    entries: tuple[Sequence[Any], ...]
    happened: list[waking.Happened]


NO_ENDS = Ends(((), (), (), ()), ((), (), (), ()), [])


class Claiming:
    """The claim of an exchange."""

    def __init__(
        self, call: Call, worker: str, name: str, queues: list[Plain], wanted: Claim | None
    ) -> None:
        self.call, self.worker, self.name, self.queues = call, worker, name, queues
        self.limit = 0 if wanted is None else wanted.limit
        self.lease_ms = 0 if wanted is None else wanted.lease_ms
        self.suffix = token_suffix(worker, name)
        self.caller = caller_of(worker, name)
        self.qids = [queue.qid for queue in queues]
        self.floors = call.memory.floors
        self.uses_floors = self.floors.active
        self.sql = FAST_WITH_FLOORS if self.uses_floors else FAST
        self.ranges = self.floors.ranges(self.qids) if self.uses_floors else None
        self._began = 0.0
        self._sent = 0.0
        self._last_seq: Reply | None = None
        if self.uses_floors:
            call.link.prepare(*_PREPARED_WITH_FLOORS)

    def execute(self, ends: Ends, *, again: bool) -> Reply:
        """Queue the statement. `again`: the call has looked before."""
        link = self.call.link
        self._sent = elapsed()
        parameters = (
            self.qids, *ends.columns, self.call.now, self.limit, self.suffix, self.worker,
            self.lease_ms, self.caller, self.name, *ends.entries, again,
        )  # fmt: skip
        if self.ranges is None:
            return link.execute(FAST["exchange"], parameters)
        self._began = time.monotonic()
        self._last_seq = link.execute(FLOORS["last_seq"])
        since = [self.floors.due(qid) for qid in self.qids]
        return link.execute(
            FAST_WITH_FLOORS["exchange"], (*parameters, since, *as_columns(self.ranges))
        )

    def _learn(self, found: dict[int, list[ExchangedJob]]) -> None:
        """The statement has succeeded: remember where nothing is left."""
        row = None if self._last_seq is None else self._last_seq.fetchone()
        if row is None or row[0] is None:
            return
        ended = time.monotonic()
        left = self.limit
        for qid in self.qids:
            self.floors.nothing_due(qid, self.call.now, self._began, ended)
            jobs = [(job.priority, job.seq) for job in found.get(qid, ())]
            left -= len(jobs)
            if self.limit and (left or jobs):
                self.floors.claimed(
                    qid, jobs, full=not left, next_seq=row[0], began=self._began, ended=ended
                )

    def registered(self, seconds: float) -> bool:
        """Whether the worker is registered as a sleeper that stays, for at most so long."""
        found = self.call.memory.registered.get(self.worker)
        return (
            found is not None
            and self.uses_floors
            and found.qids >= set(self.qids)
            and time.monotonic() - found.at < seconds
        )

    def sleeper(self, mailbox: str) -> tuple[Any, ...]:
        """The parameters that register the worker as asleep."""
        return self.qids, self.worker, mailbox, self.limit, self.call.now, self.uses_floors

    def work(self) -> list[waking.Work]:
        """The queues in which more jobs may wait than this worker has room for."""
        return [waking.Work(q.qid, q.name, 1, more=True) for q in self.queues if self.limit]

    def leases(self, reply: Any) -> tuple[list[Lease], list[int] | None]:
        """The leases that the statement has granted, in the order of the queues.

        Also the numbers of completed jobs whose end has listeners."""
        rows = reply.fetchall()
        first_job, *_, server_ms, started, watched = rows[0]  # the last three: equal in all rows
        self.call.memory.time_of_reply(server_ms, self._sent)
        jobs = [] if first_job is None else read_all(rows, ExchangedJob)
        found: dict[int, list[ExchangedJob]] = {}
        for job in jobs:
            found.setdefault(job.qid, []).append(job)
        leases: list[Lease] = []
        expires = started + self.lease_ms
        granted = self.call.memory.granted
        if len(granted) > REMEMBERED:
            granted.clear()
        for line in found.values():
            line.sort(key=queue_order)
        self._learn(found)
        for queue in self.queues:
            for job in found.get(queue.qid, ()):
                token = token_of(job, self.suffix)
                if not job.flags & ENDING & ~WATCHED:
                    granted[token] = Granted(
                        queue.qid, job.pk, job.id, job.life, job.name, None, job.attempt,
                        job.failures, job.stalls, job.created_ms, job.due_ms, started, None,
                        bool(job.flags & WATCHED),
                    )  # fmt: skip
                leases.append(lease_of(queue.name, job, token, started, expires))
        return leases, watched

    def next_due(self) -> int | None:
        """Milliseconds until a job of the queues may become claimable by the clock; None: never."""
        return self.until(
            self.call.link.execute(self.sql["next_times"], (self.qids, self.call.now))
        )

    def until(self, times: Any) -> int | None:
        """The same, of the reply."""
        row = times.fetchone()
        return None if row is None or row[0] is None else max(0, row[0] - self.call.now)


_DOES_NOT_FIT = frozenset(("22012", "23505"))  # division by zero, an id that exists
MOST = 5_000
"""Jobs. A larger put goes the general way, which inserts them in the same manner."""

FIRST, PART = 100, 450
"""Jobs of the first and of each later statement of a put. The server inserts them while the next
ones are encoded, so the first statement is small. A bulk enqueue with one statement per put takes
1.1 times as long (`python -m bench.postgres_paths --only parts`)."""

QUEUES = 10_000
"""Plain queues that a handle remembers."""

_PUT = (
    "id", "state", "priority", "at_ms", "flags", "name", "due_ms", "codec", "options", "payload",
)  # fmt: skip
"""The columns of new jobs that differ, in the order of the parameters of `put`."""

_PREPARED = (
    *(FAST[name] for name in ("exchange", "fall_asleep", "next_times", "wake_up")),
    waking.SQL["wake"],
    FLOORS["newest"],
)
"""What an exchange may need. To prepare one of them later would commit what is queued."""

STAYS_S = 5.0
"""Seconds after which a sleeper's registration that stays is renewed. The worker is registered for
twice as long after it has slept the last time."""
BUSY_S = 1.0
"""Seconds that such a registration lasts at least, also if the worker has no room for more jobs."""

_encode = msgspec.msgpack.Encoder().encode


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
    rows: list[NewJob] = []
    sent = elapsed()
    try:
        link.prepare(FAST["put"], FAST["put_again"], waking.SQL["wake"])
        for some in _parts(specs):
            part = [new_job(plain.qid, spec, 0, now, ahead, watch) for spec in some]
            link.execute(FAST["put"], _put_parameters(plain, now, part, watch))
            link.send()
            rows += part
        # A job with one of these ids may have ended meanwhile: only a later statement sees that.
        again = link.execute(FAST["put_again"], (plain.qid, [row.id for row in rows]))
        committed = link.sync()
        waiting = sum(row.state == WAITING for row in rows)
        soonest = min((row.due_ms or 0 for row in rows if row.state == DELAYED), default=None)
        work = (
            waking.Work(plain.qid, plain.name, waiting)
            if waiting
            else waking.Work(plain.qid, plain.name, 1, soonest)
        )
        waking.send(link, now, memory, [work], [waking.logged(plain.qid, plain.name)])
        link.flush()
        link.wait(committed)
    except StatementFailed as e:
        if failures.waited_for_row(e):  # new rows have nothing but their ids to wait for
            if any(spec.given_id for spec in specs):
                raise failures.id_or_lock_held() from e
            return None  # a repeated put of jobs that are stored: the general way finds them
        _refused(call, [plain.name], e)
        return None
    _, server_ms = again.fetchone() or (1, None)
    memory.time_of_reply(server_ms, sent)
    return [PutResult(id=row.id, life=0, state=STATES[row.state]) for row in rows]


def _parts(specs: Sequence[JobSpec]) -> Iterator[Sequence[JobSpec]]:
    """The jobs of each statement of a put."""
    first = FIRST if len(specs) > PART else PART
    yield specs[:first]
    for start in range(first, len(specs), PART):
        yield specs[start : start + PART]


def _put_parameters(
    queue: Plain, now: int, rows: Sequence[NewJob], watch: Watch | None
) -> tuple[Any, ...]:
    waiting = sum(row.state == WAITING for row in rows)
    watched = [ended_topic(queue.qid, row.id) for row in rows if row.flags & WATCHED]
    columns = dict(zip(NewJob._fields, zip(*rows, strict=True), strict=True))
    return (
        queue.qid, now, *(columns[name] for name in _PUT), _encode(accepted_items(rows)), waiting,
        watched, watch.address[0] if watch is not None else "", now + LISTEN_MS, *queue.name,
    )  # fmt: skip


# ── exchange ──────────────────────────────────────────────────────────────────────────────────────


def may_exchange(
    memory: PostgresMemory, outcomes: Sequence[AnyOutcome], wanted: Claim | None
) -> bool:
    """Whether an exchange only completes plain jobs that this handle has claimed."""
    granted = memory.granted
    return all(type(outcome) is Complete and outcome.token in granted for outcome in outcomes) and (
        bool(outcomes) or wanted is not None
    )


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
    link.prepare(*_PREPARED)
    # A job may have started later than now: by the server's clock, or by another handle's.
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
    ends = _ends(call, outcomes, plain) if outcomes else NO_ENDS
    if ends is None:
        return None
    claiming = Claiming(call, worker, name, [plain[queue] for queue in queues], wanted)
    # If the reply is lost, the repeated call must not be taken for a new one.
    before = memory.calls.get(claiming.caller)
    memory.calls[claiming.caller] = name
    try:
        if _wakes_up(claiming, was_asleep):
            link.execute(FAST["wake_up"], (worker,)).quiet = True
            link.sync()
        published = snapshots.ask(link, memory)
        reply = claiming.execute(ends, again=False)
        committed = link.sync()
        waking.send(link, now, memory, claiming.work(), ends.happened, claiming.ranges)
        link.flush()
        link.wait(committed)
        news = snapshots.heard(memory, published)
    except StatementFailed as e:
        _forget_call(claiming, before)
        _refused(call, plain, e)
        return None
    leases, late = claiming.leases(reply)
    _tell_of_ends(call, outcomes, late or ())
    due, asleep = None, False
    if not leases and claiming.limit:
        leases, asleep, due = _sleep(claiming, mailbox)
    elif len(leases) < claiming.limit:
        due = claiming.next_due()
    elif leases:
        _is_busy(claiming)
    if news and len(leases) < claiming.limit:
        due = 0  # the leader has found jobs where this call did not look
    if not outcomes and not leases:
        _forget_call(claiming, before)
    elif not outcomes:
        _tell_of_starts(call, plain, leases)
    return Settled(stale=(), leases=tuple(leases), next_due_ms=due, asleep=asleep), asleep


def _forget_call(claiming: Claiming, before: str | None) -> None:
    """The call has changed nothing: the one before it is the last that may be repeated."""
    if before is None:
        claiming.call.memory.calls.pop(claiming.caller, None)
    else:
        claiming.call.memory.calls[claiming.caller] = before


def _tell_of_ends(call: Call, outcomes: Sequence[Complete], late: Sequence[int]) -> None:
    """Forget the leases, and notify those who began to listen to a job's end after its claim."""
    heard = []
    for outcome in outcomes:
        job = call.memory.granted.pop(outcome.token, None)
        if job is not None and job.pk in late and not job.watched:
            heard.append(waking.ended(job.qid, outcome.queue, job.id))
    if heard:
        waking.send(call.link, call.now, call.memory, (), heard)
        call.link.flush()


def _tell_of_starts(call: Call, plain: dict[QueueName, Plain], leases: Sequence[Lease]) -> None:
    """Notify those who read the logs of the queues. An exchange that ends jobs has done that."""
    started = [plain[name] for name in dict.fromkeys(lease.queue for lease in leases)]
    heard = [waking.logged(queue.qid, queue.name) for queue in started]
    waking.send(call.link, call.now, call.memory, (), heard)
    call.link.flush()


def _sleep(claiming: Claiming, mailbox: str) -> tuple[list[Lease], bool, int | None]:
    """Register a worker that found nothing, and look once more.

    Whoever puts a job from now on wakes the worker. A job that was put before is found."""
    link, memory = claiming.call.link, claiming.call.memory
    if claiming.registered(STAYS_S):  # it was registered when it looked, and so it still is
        return [], True, claiming.next_due()
    link.execute(FAST["fall_asleep"], claiming.sleeper(mailbox))
    link.sync()
    reply = claiming.execute(NO_ENDS, again=True)
    committed = link.sync()
    times = link.execute(claiming.sql["next_times"], (claiming.qids, claiming.call.now))
    link.flush()
    try:
        link.wait(committed)
    except StatementFailed as e:
        _refused(claiming.call, [queue.name for queue in claiming.queues], e)
        return [], True, 0  # something is due by now: the worker looks again at once
    if claiming.uses_floors:
        memory.registered[claiming.worker] = Registered(frozenset(claiming.qids), time.monotonic())
    leases, _ = claiming.leases(reply)
    if leases:
        link.discard()
        return leases, False, None
    return leases, True, claiming.until(times)


def _wakes_up(claiming: Claiming, was_asleep: bool) -> bool:
    """Whether the registration of the worker must be deleted: those that stay are not."""
    memory, worker = claiming.call.memory, claiming.worker
    if claiming.registered(2 * STAYS_S):
        return False
    return memory.registered.pop(worker, None) is not None or was_asleep


def _is_busy(claiming: Claiming) -> None:
    """The worker has no room left: delete its registration that stays, so that others are woken.

    Not more than once per second, because each time leaves a dead row."""
    registered = claiming.call.memory.registered
    found = registered.get(claiming.worker)
    if found is not None and time.monotonic() - found.at >= BUSY_S:
        del registered[claiming.worker]
        claiming.call.link.execute(FAST["wake_up"], (claiming.worker,)).quiet = True
        claiming.call.link.flush()


def _ends(call: Call, outcomes: Sequence[Complete], plain: dict[QueueName, Plain]) -> Ends | None:
    now, granted = call.now, call.memory.granted
    columns: list[tuple[Any, ...]] = []
    items: dict[int, list[Item]] = {}
    runs: dict[int, int] = {}
    happened: list[waking.Happened] = []
    for outcome in outcomes:
        job = granted.get(outcome.token)
        queue = plain[outcome.queue]
        if job is None or job.id != outcome.id or job.qid != queue.qid:
            return None
        columns.append((job.pk, outcome.token, outcome.result))
        items.setdefault(job.qid, []).append(completed_item(job, now))
        runs[job.qid] = runs.get(job.qid, 0) + now - job.started_ms
        if job.watched:
            happened.append(waking.ended(job.qid, queue.name, job.id))
    columns.sort(key=itemgetter(0))  # the statement finds them by a binary search
    happened += [waking.logged(queue.qid, queue.name) for queue in plain.values()]
    entries = (
        list(items), [len(each) for each in items.values()], list(runs.values()),
        [_encode(each) for each in items.values()],
    )  # fmt: skip
    return Ends((list(items), *zip(*columns, strict=True)), entries, happened)


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
    if error.sqlstate not in _DOES_NOT_FIT:
        raise error
    for name in names:
        call.memory.plain.pop(name, None)
    call.link.discard()
