"""What happens in the world of a seed: workers, producers and operators, and what they do when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.simulation.app import Shape
from tests.simulation.faults import Fault, draw_faults, draw_raises, draw_short_faults

CALM_FATES = ("fail", "fail", "reject", "after", "snooze")
FATES = (*CALM_FATES, "limited", "hang", "stubborn", "die", "block")
HARMLESS_FATES = (*CALM_FATES, "limited", "hang", "stubborn")
"""What a handler does in its runs. In a calm world slots are free at once. Harmless ones cost no
lease."""
KEYS = ("a", "b", "c")


@dataclass(frozen=True)
class Action:
    """What a producer or an operator does at a time. `id` names the job or flow."""

    at: float
    who: str
    what: str
    id: str
    args: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        options = "".join(f" {name}={value}" for name, value in self.options)
        return f"{self.at:5.1f} s {self.who}: {self.what} {self.id} {self.args}{options}"


@dataclass(frozen=True)
class Scenario:
    """Everything that is drawn from a seed before its world begins. Parts can be left out."""

    seed: int
    workers: tuple[int, ...]  # the concurrency of each
    producers: tuple[str, ...]
    actions: tuple[Action, ...]
    faults: tuple[Fault, ...]
    shape: Shape
    lanes: int | None
    lossy: float
    slow: float
    relays: int

    @property
    def seats(self) -> list[str]:
        """The names of processes that may be faulty."""
        workers = [f"w{n}" for n in range(len(self.workers))]
        return [*workers, *self.producers, *(f"r{n}" for n in range(self.relays))]


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = Random(f"{seed}/scenario")
    temper = rng.choice(("calm", "flaky", "faulty", "wild", "wild"))
    workers = tuple(rng.choice((1, 2, 3, 6)) for _ in range(rng.randint(1, 3)))
    producers = tuple(f"p{n}" for n in range(rng.randint(1, 2)))
    shape = Shape(
        key_limit=rng.choice((1, 1, 2)),
        limit=rng.choice((1, 2, 3)),
        rate=rng.choice((None, None, (3, 2.0))),
        max_waiting=rng.choice((None, None, 3)),
        dead_letters=rng.random() < 0.3,
    )
    scenario = Scenario(
        seed=seed,
        workers=workers,
        producers=producers,
        actions=tuple(sorted(_actions(rng, producers, temper), key=lambda action: action.at)),
        faults=(),
        shape=shape,
        lanes=rng.choice((None, 1, 2)),
        lossy=0.0 if temper == "calm" else rng.choice((0.0, 0.1, 0.5)),
        slow=0.0 if temper in ("calm", "flaky") else rng.choice((0.0, 0.02, 0.1)),
        relays=rng.choice((0, 0, 1, 2)),
    )
    if temper == "calm":
        return scenario
    raises = draw_raises(Random(f"{seed}/raises"), scenario.seats)
    if temper == "flaky":
        return replace(scenario, faults=(*draw_short_faults(rng, scenario.seats), *raises))
    amount = 0.4 if temper == "faulty" else 1.0
    return replace(scenario, faults=(*draw_faults(rng, scenario.seats, 15.0, amount), *raises))


def _actions(rng: Random, producers: tuple[str, ...], temper: str) -> list[Action]:
    fates = {"calm": CALM_FATES, "flaky": HARMLESS_FATES}.get(temper, FATES)
    operated = _CALMLY_OPERATED if temper == "calm" else _OPERATED
    found: list[Action] = []
    jobs: list[str] = []
    for n in range(rng.randint(3, 20)):
        at, who = rng.choice((0.0, rng.uniform(0, 10))), rng.choice(producers)
        what = rng.choice(_PRODUCED)
        id = f"{what[0]}{n}"
        found.append(Action(at, who, what, id, _args(rng, what, id, fates), _options(rng, what)))
        if what not in ("flow", "schedule"):
            jobs.append(id)
    for n in range(rng.randint(0, 6)):
        what = rng.choice(operated)
        target = rng.choice(jobs) if jobs else "none"
        found.append(Action(rng.uniform(0, 12), rng.choice(producers), what, target, (n,)))
    return found


_PRODUCED = (
    "work", "work", "work", "work", "steps", "cursor", "parent", "approve", "pages", "flow",
    "index", "index", "keep", "batch", "batch", "schedule", "deliver", "deliver", "deliver",
    "narrow", "narrow", "narrow", "crunch", "crunch",
)  # fmt: skip
_CALMLY_OPERATED = (
    "cancel", "cancel", "rerun", "signal", "signal", "promote", "reprioritise", "update", "remove",
)  # fmt: skip
_OPERATED = (*_CALMLY_OPERATED, "pause", "hold", "restart")


def _fate(rng: Random, fates: tuple[str, ...]) -> list[str]:
    return [rng.choice(fates) for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3)))]


def _args(rng: Random, what: str, id: str, fates: tuple[str, ...]) -> tuple[Any, ...]:
    seconds = rng.choice((0.0, 0.0, 0.1, 1.0, 3.0))
    fate = _fate(rng, fates)
    return {
        "work": (fate, seconds),
        "crunch": (fate, seconds),
        "steps": (fate, seconds),
        "cursor": (rng.randint(1, 4), fate),
        "parent": (rng.randint(0, 4), fate),
        "approve": (),
        "pages": (rng.randint(0, 3),),
        "flow": (rng.randint(1, 4), fate),
        "index": (rng.randint(0, 1), fate, seconds),
        "keep": (rng.randint(0, 1), rng.randint(0, 99), seconds),
        "batch": (id,),
        "schedule": (rng.choice((0.5, 2.0)), rng.randint(1, 4)),
        "deliver": (rng.choice(KEYS), fate, seconds),
        "narrow": (fate, seconds),
    }[what]


def _options(rng: Random, what: str) -> tuple[tuple[str, Any], ...]:
    if what in ("flow", "schedule", "index", "keep"):
        return ()
    options: list[tuple[str, Any]] = []
    if rng.random() < 0.15:
        options.append(("delay", rng.choice((0.2, 2.0, 6.0))))
    if rng.random() < 0.15:
        options.append(("priority", rng.randint(1, 3)))
    if rng.random() < 0.05:
        options.append(("lifo", True))
    if rng.random() < 0.1:
        options.append(("max_stalls", rng.randint(0, 2)))
    if rng.random() < 0.05:
        options.append(("ttl", 4.0))
    return tuple(options)
