"""What an installation has to carry."""

from __future__ import annotations

from typing import Literal

import msgspec

from jobq.errors import ConfigError

StoreKind = Literal["valkey", "postgres", "sqlite"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A steady load, and the installation that is asked about. Sizes are in bytes."""

    jobs_per_s: float
    payload: int = 200
    result: int = 100
    run_s: float = 0.1  # from a job's start to its end
    cpu_s: float = 0.0  # processor time of the handler per job
    concurrency: int = 100  # slots of a worker process
    enqueue_batch: int = 1  # jobs that producers enqueue together
    idle_workers: int = 0  # worker processes that have nothing to do
    queues: int = 1  # all get the same share of the jobs
    tenants: int = 1
    backlog_s: float = 600.0  # seconds of jobs that may wait before memory runs out
    kept_s: float = 30 * 86_400.0  # how long the lake keeps events
    store: StoreKind = "valkey"
    server: bool = False  # clients and workers use a jq-server
    kafka: bool = False
    lake: bool = False
    cores: int = 8  # of a PostgreSQL machine
    headroom: float = 0.5  # the part of every processor that stays free

    def __post_init__(self) -> None:
        """Raise ConfigError for a load that cannot be."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not value <= MOST:  # nor is NaN
                raise ConfigError(f"{name} must be at most {MOST:g}, not {value:g}")
        for name in ("jobs_per_s", "concurrency", "enqueue_batch", "queues", "tenants", "cores"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name):g}")
        for name in ("payload", "result", "run_s", "cpu_s", "idle_workers", "backlog_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, not {getattr(self, name):g}")
        if not 0 <= self.headroom < 1:
            raise ConfigError(f"headroom must be from 0 to below 1, not {self.headroom:g}")
        if self.cpu_s > self.run_s:
            raise ConfigError(
                f"a run of {self.run_s:g} s cannot use {self.cpu_s:g} s of processor time"
            )

    @property
    def all_queues(self) -> int:
        """Each tenant has at least one queue."""
        return max(self.queues, self.tenants)

    @property
    def busy(self) -> float:
        """The part of a processor that may be used, in µs per second."""
        return 1e6 * (1 - self.headroom)

    @property
    def events_per_s(self) -> float:
        """A job that succeeds at once leaves three events: accepted, started, completed."""
        return EVENTS_PER_JOB * self.jobs_per_s

    @property
    def read_by_relay(self) -> bool:
        """Whether a relay reads the event log."""
        return self.kafka or self.lake


EVENTS_PER_JOB = 3
MOST = 1e12
"""The largest figure of a load."""
