"""How a worker runs its child processes. Users set these with `Worker(…)`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobq.executors.cpus import usable_cpus

if TYPE_CHECKING:
    from jobq.executors.sandbox import Sandboxes


def _sandboxes() -> Sandboxes:
    # Here, because the sandbox takes 15 ms to import, and only workers need it.
    from jobq.executors.sandbox import Sandboxes

    return Sandboxes()


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """The pool of the `process` executor, and how long a handler that is stopped may take."""

    pool: int = field(default_factory=usable_cpus)
    pool_max_jobs: int | None = None
    pool_max_memory: int | None = None  # bytes
    # How long a child may take to import its tasks. A model of some gigabytes takes a minute.
    start_timeout_s: float = 120.0
    # How long an idle child may take to end. Its handlers of `atexit` run.
    end_timeout_s: float = 5.0
    # The module and the name of the function of the worker's lifespan.
    lifespan: tuple[str, str] | None = None
    # What children with permissions may use.
    sandboxes: Sandboxes = field(default_factory=_sandboxes, compare=False)
