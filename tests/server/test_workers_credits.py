"""Credits of a job stream: the server never claims more than the worker has granted."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jobq.server.streams import LAST_CHANCE_S, Allowance, Credits

LEASE_S = 15.0


def credits(free: int, *, running: int = 0) -> Credits:
    made = Credits(lease_s=LEASE_S, running=running)
    made.open_with(free)
    return made


def claimed(stream: Credits, jobs: int, now: float = 0.0, **what: bool) -> None:
    stream.claimed(
        jobs, now, last_chance=what.get("last_chance", False), next_is=what.get("next_is", False)
    )


def test_a_stream_without_credit_claims_nothing() -> None:
    assert credits(0).allowance(0) is None


def test_a_stream_claims_as_many_jobs_as_it_has_credits() -> None:
    stream = credits(3)
    assert stream.allowance(0) == Allowance(3, alone=True)
    claimed(stream, 2)
    assert stream.allowance(0) == Allowance(1, alone=False)
    claimed(stream, 1)
    assert stream.allowance(0) is None
    stream.grant(1)
    assert stream.allowance(0) == Allowance(1, alone=False)


def test_a_worker_that_already_runs_jobs_is_not_alone() -> None:
    stream = credits(2, running=1)
    assert stream.allowance(0) == Allowance(2, alone=False)
    stream.grant(1)
    assert stream.allowance(0) == Allowance(3, alone=True)


def test_a_job_on_its_last_chance_waits_until_the_worker_runs_nothing() -> None:
    stream = credits(3)
    claimed(stream, 1, next_is=True)
    assert stream.allowance(LEASE_S - 1) is None
    assert stream.changes_at() == LEASE_S
    stream.grant(1)
    assert stream.allowance(1) == Allowance(3, alone=True)


def test_a_job_on_its_last_chance_waits_for_one_lease_at_most() -> None:
    stream = credits(3)
    claimed(stream, 1, next_is=True)
    assert stream.allowance(LEASE_S) == Allowance(2, alone=True)


def test_a_job_on_its_last_chance_is_the_whole_credit_of_its_stream() -> None:
    stream = credits(3)
    claimed(stream, 1, last_chance=True)
    assert stream.allowance(LAST_CHANCE_S - 1) is None
    stream.grant(1)
    assert stream.allowance(1) == Allowance(3, alone=True)


def test_a_job_on_its_last_chance_that_takes_long_does_not_stop_its_stream_for_ever() -> None:
    stream = credits(3)
    claimed(stream, 1, last_chance=True)
    assert stream.changes_at() == LAST_CHANCE_S
    assert stream.allowance(LAST_CHANCE_S) == Allowance(2, alone=False)


def test_the_stream_claims_again_if_another_worker_got_the_job_on_its_last_chance() -> None:
    stream = credits(3)
    claimed(stream, 1, next_is=True)
    stream.grant(1)
    claimed(stream, 2, now=1)
    assert stream.allowance(1) == Allowance(1, alone=False)


class Streams(RuleBasedStateMachine):
    """A worker with some slots and a server that pushes as `Credits` allows."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.slots = 0
        self.running: list[bool] = []  # per job: whether it is on its last chance
        self.stream: Credits | None = None
        self.pending: Allowance | None = None
        self.alone_since: float | None = None

    @precondition(lambda self: self.stream is None)
    @rule(slots=st.integers(0, 5), running=st.integers(0, 3))
    def connect(self, slots: int, running: int) -> None:
        self.slots = slots + running
        self.running = [False] * running
        self.stream = credits(slots, running=running)

    @precondition(lambda self: self.stream is not None)
    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_jobs(self, data: st.DataObject) -> None:
        assert self.stream is not None
        ended = data.draw(st.integers(1, len(self.running)))
        del self.running[:ended]
        self.stream.grant(ended)
        if not self.running:
            self.alone_since = None

    @precondition(lambda self: self.stream is not None)
    @rule(found=st.integers(0, 5), chance=st.booleans())
    def claim(self, found: int, chance: bool) -> None:
        assert self.stream is not None
        allowance = self.stream.allowance(self.now)
        if allowance is None:
            return
        assert self.alone_since is None or self.now >= self.alone_since + LAST_CHANCE_S
        if chance and allowance.alone:
            self.stream.claimed(1, self.now, last_chance=True, next_is=False)
            self.running.append(True)
            self.alone_since = self.now
        else:
            jobs = min(found, allowance.limit)
            self.stream.claimed(jobs, self.now, last_chance=False, next_is=chance)
            self.running += [False] * jobs

    @invariant()
    def the_worker_never_runs_more_than_its_slots(self) -> None:
        assert len(self.running) <= self.slots

    @invariant()
    def a_stream_with_credit_always_knows_when_it_claims_again(self) -> None:
        if self.stream is None or self.stream.free == 0:
            return
        if self.stream.allowance(self.now) is None:
            again = self.stream.changes_at()
            assert again is not None
            assert self.stream.allowance(max(again, self.now + LAST_CHANCE_S)) is not None


TestStreams = Streams.TestCase
TestStreams.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
