"""The faults of a seed. Each can be left out without changing when the others happen."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

EFFECTS = (
    "fail before",
    "fail after",
    "fail after",
    "lose reply",
    "lose reply",
    "delay call",
    "delay reply",
    "delay reply",
    "repeat",
)
"""What may happen to a call: not sent; executed, and the connection breaks; executed, and no reply
comes; late; executed, and the reply is late; executed twice."""


SHORT_EFFECTS = ("fail before", "fail after")
SHORT_S = 0.5
"""Seconds of a fault after which a worker can repeat its call long before its lease ends."""


@dataclass(frozen=True)
class CallFault:
    """What happens to one call of a process, counted from its start."""

    process: str
    call: int
    effect: str
    seconds: float

    @property
    def is_short(self) -> bool:
        """Whether the caller soon learns that the call failed. That must cost no lease."""
        return self.effect in SHORT_EFFECTS and self.seconds <= SHORT_S

    def __str__(self) -> str:
        return f"call {self.call} of {self.process}: {self.effect} ({self.seconds:g} s)"


@dataclass(frozen=True)
class Kill:
    """A process is killed after this many callbacks: at any await of any of its tasks."""

    process: str
    step: int

    def __str__(self) -> str:
        return f"{self.process} is killed at its step {self.step}"


@dataclass(frozen=True)
class Freeze:
    """A process stands still. With `main_only`, a handler blocks the event loop instead."""

    seat: str
    at: float
    seconds: float
    main_only: bool

    def __str__(self) -> str:
        what = "the main thread of " if self.main_only else ""
        return f"{what}{self.seat} is frozen at {self.at:.1f} s for {self.seconds:.1f} s"


@dataclass(frozen=True)
class Jump:
    """The machine's clock is set."""

    at: float
    ms: int

    def __str__(self) -> str:
        return f"the clock is set by {self.ms / 1000:+.1f} s at {self.at:.1f} s"


@dataclass(frozen=True)
class OutageOf:
    """No call of a process, or of all, reaches the store."""

    at: float
    seconds: float
    process: str | None

    def __str__(self) -> str:
        who = self.process or "everybody"
        return f"{who} has no store at {self.at:.1f} s for {self.seconds:.1f} s"


@dataclass(frozen=True)
class Raise:
    """A call that a worker makes about one of its runs raises, counted from its start.

    It costs that run, and neither its slot nor any lease.
    """

    process: str
    call: int

    def __str__(self) -> str:
        return f"call {self.call} of {self.process} about its runs raises"


Fault = CallFault | Kill | Freeze | Jump | OutageOf | Raise


def draw_raises(rng: Random, seats: list[str]) -> list[Fault]:
    """Errors inside of workers."""
    workers = [seat for seat in seats if seat.startswith("w")]
    return [
        Raise(f"{rng.choice(workers)}.{rng.choice((0, 0, 0, 1))}", rng.randint(1, 250))
        for _ in range(rng.choice((0, 1, 3, 10)))
    ]


def draw_short_faults(rng: Random, seats: list[str]) -> list[Fault]:
    """Faults of a world in which calls often fail, and no lease may be lost."""
    return [
        CallFault(
            f"{rng.choice(seats)}.0",
            rng.randint(1, 150),
            rng.choice(SHORT_EFFECTS),
            rng.choice((0.0, 0.01, SHORT_S)),
        )
        for _ in range(rng.randint(10, 40))
    ]


def draw_faults(rng: Random, seats: list[str], seconds: float, amount: float) -> list[Fault]:
    """Faults of the first `seconds`. `amount` 0 is a calm world, 1 a wild one."""
    workers = [seat for seat in seats if seat.startswith("w")]
    found: list[Fault] = []

    def many(most: float) -> range:
        return range(round(rng.random() * most * amount))

    found += [
        CallFault(
            f"{rng.choice(seats)}.{rng.choice((0, 0, 0, 1))}",
            rng.randint(1, 150),
            rng.choice(EFFECTS),
            rng.choice((0.0, 0.01, 0.5, 3.0, 8.0)),
        )
        for _ in many(30)
    ]
    found += [
        Kill(f"{rng.choice(seats)}.{rng.choice((0, 0, 1, 2))}", int(rng.expovariate(1 / 800)) + 5)
        for _ in many(6)
    ]
    found += [
        Freeze(
            rng.choice(workers),
            rng.uniform(0, seconds),
            rng.choice((0.5, 3.0, 6.0, 12.0, 20.0)),
            rng.random() < 0.4,
        )
        for _ in many(4)
    ]
    found += [
        Jump(rng.uniform(0, seconds), rng.choice((-20_000, -3_000, -300, 700, 3_000, 30_000)))
        for _ in many(2)
    ]
    found += [
        OutageOf(
            rng.uniform(0, seconds),
            rng.choice((0.2, 2.0, 7.0)),
            rng.choice((None, *(f"{seat}.0" for seat in seats))),
        )
        for _ in many(3)
    ]
    return found
