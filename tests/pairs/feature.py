"""What a feature is: what it does to the subject of a scene, and what must then hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from jobq.core.records.jobs import AnyOutcome, Lease
from jobq.core.records.queues import RetentionData

if TYPE_CHECKING:
    from tests.pairs.scene import Scene

Kind = Literal["plain", "keyed", "partitioned", "partitioned-keyed"]
KINDS: tuple[Kind, ...] = ("plain", "keyed", "partitioned", "partitioned-keyed")

Step = Callable[["Scene"], Awaitable[None]]
Visit = Callable[["Scene", Lease], Awaitable[None]]
End = Callable[["Scene", Lease], Awaitable[AnyOutcome | None]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the subject before its last one.

    `end` returns the outcome, or None to lose the lease. `then` lets the job continue."""

    end: End
    then: Step | None = None


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature. The phases of a scene, in order:

    before   other jobs are put
    (put)    the subject is put with the options of all features
    pending  the subject has not started; it may be delayed or blocked
    ripe     the subject is waiting and could start now
    running  a run of the subject is under way (once per run)
    (end)    the run ends: those of `runs` first, then the last one completes
    between  the subject waits for its next run
    after    the subject has ended
    holds    the scene is over: what must be true of the whole story
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Callable[[Kind], Mapping[str, Any]] = lambda kind: {}
    retention: RetentionData | None = None
    before: Step | None = None
    pending: Step | None = None
    ripe: Step | None = None
    running: Visit | None = None
    runs: tuple[Run, ...] = ()
    between: Step | None = None
    after: Step | None = None
    holds: Callable[[Scene], None] = lambda scene: None

    def phases(self) -> frozenset[str]:
        """The phases in which the feature acts. Features that share one play in both orders."""
        acting = {
            name
            for name in ("before", "pending", "ripe", "running", "between", "after")
            if getattr(self, name)
        }
        return frozenset(acting | ({"runs"} if self.runs else set()))
