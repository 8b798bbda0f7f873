"""The lease protocol: workers that claim, run, extend and settle, and a store, over a bad network.

The store executes one call at a time. A worker has one exchange in flight, and repeats it under the
same name until a reply comes. Messages are lost and repeated, leases expire at any moment (so the
model needs no clock: a frozen worker, a slow network and a clock that jumps all look like this),
and workers are killed and started again under the same name.

`Bugs` are mutants of the protocol. A model that cannot find them would prove little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from jobq.core.records.states import Kind, State, legal
from tests.model.states import (
    ACTIVE,
    COMPLETED,
    ONE_EACH,
    WAITING,
    Budget,
    Call,
    Job,
    Message,
    Remembered,
    Reply,
    Run,
    Token,
    Worker,
    World,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Bugs:
    """What a mutant does wrong."""

    no_fence: bool = False  # the store accepts an outcome without looking at its token
    no_memory: bool = False  # the store executes a repeated exchange again
    new_name: bool = False  # the worker repeats an exchange under another name
    forgets_leases: bool = False  # the reply to a repeated exchange has no leases
    renews_lost: bool = False  # the store renews a lease without looking at its token
    never_expires: bool = False  # the store does not take leases away
    shared_life: bool = False  # a worker that restarts counts its calls from the start again
    short_tokens: bool = False  # tokens do not contain the attempt
    acks_early: bool = False  # the worker forgets ended runs before the store has replied


@dataclass(frozen=True)
class Model:
    """The protocol at a size. `late` allows a call to be executed after the worker's next one."""

    jobs: int = 2
    workers: int = 2
    slots: int = 1
    budget: Budget = ONE_EACH
    late: bool = False
    bugs: Bugs = Bugs()

    def beginning(self) -> World:
        """All jobs wait."""
        return World(
            jobs=(Job(),) * self.jobs,
            workers=(Worker(),) * self.workers,
            last=(None,) * self.workers,
            net=frozenset(),
            budget=self.budget,
        )

    @staticmethod
    def over(world: World) -> bool:
        """All jobs have ended, and nobody holds anything."""
        return all(job.state is COMPLETED for job in world.jobs) and not any(
            worker.runs or worker.pending for worker in world.workers
        )

    # ── what can happen ──

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        if world.broken is not None:
            return
        for n, worker in enumerate(world.workers):
            yield from self._worker_steps(world, n, worker)
        for message in world.net:
            yield from self._deliveries(world, message)
        if not self.bugs.never_expires:
            yield from self._expiries(world)

    def _expiries(self, world: World) -> Iterator[tuple[str, World]]:
        """A lease that somebody renews expires seldom, one that nobody knows for certain."""
        budget = world.budget
        for n, job in enumerate(world.jobs):
            if job.token is None:
                continue
            freed = _job(world, n, _moved(job, Kind.STALLED, WAITING))
            if is_orphaned(world, job.token):
                yield f"the lease of job {n}, which nobody has, expires", freed
            elif budget.expiries:
                fewer = budget._replace(expiries=budget.expiries - 1)
                yield f"the lease of job {n} expires", freed._replace(budget=fewer)

    def _worker_steps(self, world: World, n: int, worker: Worker) -> Iterator[tuple[str, World]]:
        budget = world.budget
        for run in worker.runs:
            if run.end is not None:
                continue
            done = _worker(world, n, worker._replace(runs=_ended(worker.runs, run, "complete")))
            yield (
                f"worker {n}: job {run.job}/{run.attempt} returns",
                done._replace(returned=world.returned | {(run.job, run.attempt)}),
            )
            if budget.retries:
                failed = _worker(world, n, worker._replace(runs=_ended(worker.runs, run, "retry")))
                yield (
                    f"worker {n}: job {run.job}/{run.attempt} fails",
                    failed._replace(budget=budget._replace(retries=budget.retries - 1)),
                )
            yield from self._renewal(world, n, worker, run)
        ended = frozenset(run for run in worker.runs if run.end is not None)
        free = self.slots - len(worker.runs - ended)
        wanted = free if any(job.state is WAITING for job in world.jobs) else 0
        if worker.pending is None and (ended or wanted):
            yield self._exchange(world, n, worker, ended, free)
        if worker.pending is not None and worker.pending not in world.net:
            yield from self._repetition(world, n, worker, worker.pending)
        if budget.kills:
            calls = 0 if self.bugs.shared_life else worker.calls
            life = worker.life if self.bugs.shared_life else worker.life + 1
            reborn = _worker(world, n, Worker(life=life, calls=calls))
            unheard = {m for m in world.net if isinstance(m, Reply) and m.worker == n}
            if not self.bugs.shared_life:
                reborn = reborn._replace(net=reborn.net - unheard)
            yield (
                f"worker {n} is killed and starts again",
                reborn._replace(budget=budget._replace(kills=budget.kills - 1)),
            )

    def _renewal(
        self, world: World, n: int, worker: Worker, run: Run
    ) -> Iterator[tuple[str, World]]:
        """`extend` and its reply in one step: while the lease is held, it changes nothing."""
        job = world.jobs[run.job]
        if job.state is ACTIVE and job.token != run.token and self.bugs.renews_lost:
            yield "", world._replace(broken=f"a lost lease of job {run.job} is renewed")
        elif job.token != run.token:
            stopped = _worker(world, n, worker._replace(runs=worker.runs - {run}))
            yield f"worker {n} learns that it has lost job {run.job}/{run.attempt}", stopped

    def _exchange(
        self, world: World, n: int, worker: Worker, ended: frozenset[Run], free: int
    ) -> tuple[str, World]:
        call = Call(n, worker.life, worker.calls + 1, ended, free)
        runs = worker.runs - ended if self.bugs.acks_early else worker.runs
        told = ", ".join(f"{run.end} {run.job}/{run.attempt}" for run in sorted(ended))
        sending = _worker(world, n, worker._replace(calls=call.number, pending=call, runs=runs))
        return f"worker {n} sends call {call.number} [{told}], claim {free}", _sent(sending, call)

    def _repetition(
        self, world: World, n: int, worker: Worker, call: Call
    ) -> Iterator[tuple[str, World]]:
        answered = any(
            isinstance(m, Reply) and (m.worker, m.life, m.number) == (n, call.life, call.number)
            for m in world.net
        )
        if self.bugs.acks_early:  # it does not know any more what to repeat
            call = call._replace(ended=frozenset())
        if not answered and self.bugs.new_name and worker.calls < 4:
            again = call._replace(number=worker.calls + 1)
            renamed = worker._replace(calls=again.number, pending=again)
            yield f"worker {n} repeats as {again.number}", _sent(_worker(world, n, renamed), again)
        elif not answered:
            yield (
                f"worker {n} repeats call {call.number}",
                _sent(_worker(world, n, worker._replace(pending=call)), call),
            )

    def _deliveries(self, world: World, message: Message) -> Iterator[tuple[str, World]]:
        budget = world.budget
        gone = world._replace(net=world.net - {message})
        name = f"{type(message).__name__.lower()} {message.number} of worker {message.worker}"
        if budget.losses:
            lost = gone._replace(budget=budget._replace(losses=budget.losses - 1))
            yield f"{name} is lost", lost
        if self._may_execute(world, message):
            for what, after in self._arrive(gone, message):
                yield f"{name} arrives{what}", after
                if budget.repeats:
                    fewer = budget._replace(repeats=budget.repeats - 1)
                    again = after._replace(net=after.net | {message}, budget=fewer)
                    yield f"{name} arrives{what}, and will again", again
        else:
            yield f"{name} is dropped", gone

    def _may_execute(self, world: World, message: Message) -> bool:
        """Without `late`, a connection that the worker has given up delivers nothing more."""
        if self.late or not isinstance(message, Call):
            return True
        last = world.last[message.worker]
        return last is None or (last.life, last.number) <= (message.life, message.number)

    def _arrive(self, world: World, message: Message) -> Iterator[tuple[str, World]]:
        if isinstance(message, Call):
            yield from self._settle(world, message)
        else:
            yield self._receive(world, message)

    # ── the store ──

    def _settle(self, world: World, call: Call) -> Iterator[tuple[str, World]]:
        last = world.last[call.worker]
        repeated = last is not None and (last.life, last.number) == (call.life, call.number)
        if repeated and last is not None and not self.bugs.no_memory:
            held = [n for n, job in enumerate(world.jobs) if _is_of(job.token, call)]
            leases = frozenset() if self.bugs.forgets_leases else _leases(world, held)
            yield ", and was executed before", _replied(world, call, last.stale, leases)
            return
        stale: set[tuple[int, Token]] = set()
        for run in sorted(call.ended):
            world = self._apply(world, run, stale)
        waiting = [n for n, job in enumerate(world.jobs) if job.state is WAITING]
        claimed = waiting[: call.limit]
        for n in claimed:
            job = world.jobs[n]
            started = _moved(job, Kind.STARTED, ACTIVE)._replace(
                attempt=job.attempt + 1,
                token=_token(call, 0 if self.bugs.short_tokens else job.attempt + 1),
            )
            world = _job(world, n, started)
        remembered = Remembered(call.life, call.number, frozenset(stale))
        if call.ended or claimed:
            world = world._replace(last=_with(world.last, call.worker, remembered))
        yield "", _replied(world, call, frozenset(stale), _leases(world, claimed))

    def _apply(self, world: World, run: Run, stale: set[tuple[int, Token]]) -> World:
        """Apply one outcome, if its token is the job's lease."""
        job = world.jobs[run.job]
        valid = job.state is ACTIVE and (job.token == run.token or self.bugs.no_fence)
        if not valid:
            stale.add((run.job, run.token))
            return world
        if job.attempt != run.attempt:
            return world._replace(
                broken=f"attempt {run.attempt} of job {run.job} ends attempt {job.attempt}"
            )
        if run.end == "complete":
            if (run.job, run.attempt) not in world.returned:
                return world._replace(broken=f"job {run.job} is completed and did not return")
            return _job(world, run.job, _moved(job, Kind.COMPLETED, COMPLETED))
        return _job(world, run.job, _moved(job, Kind.RETRIED, WAITING))

    # ── the worker ──

    def _receive(self, world: World, reply: Reply) -> tuple[str, World]:
        worker = world.workers[reply.worker]
        call = worker.pending
        if call is None or (worker.life, call.number) != (reply.life, reply.number):
            return ", and nobody waits for it", world
        runs = (worker.runs - call.ended) | reply.leases
        if len(runs) > self.slots:
            return "", world._replace(broken=f"worker {reply.worker} has more runs than slots")
        starts = frozenset((run.job, run.attempt) for run in reply.leases)
        if twice := starts & world.started:
            return "", world._replace(broken=f"attempts {sorted(twice)} run twice")
        received = _worker(world, reply.worker, worker._replace(pending=None, runs=runs))
        return "", received._replace(started=world.started | starts)


# ── invariants ────────────────────────────────────────────────────────────────────────────────────


def is_orphaned(world: World, token: Token) -> bool:
    """Whether no worker has the lease, and none will get it by repeating its exchange."""
    worker = world.workers[token.worker]
    if any(run.token == token for run in worker.runs):
        return False
    pending = worker.pending
    return pending is None or (pending.life, pending.number) != (token.life, token.call)


def broken(world: World, model: Model) -> str | None:
    """The first invariant that a state breaks."""
    if world.broken is not None:
        return world.broken
    reliable = (world.budget.kills, world.budget.repeats) == (
        model.budget.kills,
        model.budget.repeats,
    )
    for n, job in enumerate(world.jobs):
        if reliable and job.token is not None and is_orphaned(world, job.token):
            return f"a lost message has cost the lease of job {n}"
        if (job.state is ACTIVE) != (job.token is not None):
            return f"job {n} is {job.state} with the token {job.token}"
        holders = [
            run
            for worker in world.workers
            for run in worker.runs
            if run.job == n and run.token == job.token and job.token is not None
        ]
        if len(holders) > 1:
            return f"job {n} has {len(holders)} holders"
        if any(run.attempt != job.attempt for run in holders):
            return f"job {n} is in attempt {job.attempt}, and its holder in another"
    return None


# ── parts of states ───────────────────────────────────────────────────────────────────────────────


def _token(call: Call, attempt: int) -> Token:
    return Token(call.worker, call.life, call.number, attempt)


def _is_of(token: Token | None, call: Call) -> bool:
    """Whether a lease was granted by this call."""
    return token is not None and token[:3] == (call.worker, call.life, call.number)


def _moved(job: Job, kind: Kind, state: State) -> Job:
    assert legal(kind, job.state, state), f"{kind}: {job.state} → {state}"
    return job._replace(state=state, token=None)


def _with(items: tuple[T, ...], n: int, item: T) -> tuple[T, ...]:
    return (*items[:n], item, *items[n + 1 :])


def _job(world: World, n: int, job: Job) -> World:
    return world._replace(jobs=_with(world.jobs, n, job))


def _worker(world: World, n: int, worker: Worker) -> World:
    return world._replace(workers=_with(world.workers, n, worker))


def _sent(world: World, message: Message) -> World:
    return world._replace(net=world.net | {message})


def _ended(runs: frozenset[Run], run: Run, end: str) -> frozenset[Run]:
    return (runs - {run}) | {run._replace(end=end)}


def _leases(world: World, jobs: list[int]) -> frozenset[Run]:
    found = ((n, world.jobs[n]) for n in jobs)
    return frozenset(Run(n, job.attempt, job.token) for n, job in found if job.token is not None)


def _replied(
    world: World, call: Call, stale: frozenset[tuple[int, Token]], leases: frozenset[Run]
) -> World:
    return _sent(world, Reply(call.worker, call.life, call.number, stale, leases))
