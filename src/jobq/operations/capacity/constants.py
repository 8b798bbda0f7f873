"""The measured costs. measured.toml has those of one machine; `python -m bench.capacity` measures
them on another."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from math import inf
from pathlib import Path

import msgspec

from jobq.errors import ConfigError


class About(msgspec.Struct, frozen=True, kw_only=True):
    """When, where and how the file was measured."""

    measured: str
    machine: str
    versions: str
    commit: str
    how: str


class StoreCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store's server spends. `_us` is processor time in µs, of all its processes together.

    A job is *sparse* if the worker has nothing else to do: the job wakes it, and each step is a
    call of its own. It is *dense* if the worker settles and claims about a hundred jobs per call.
    A server that sleeps between calls needs more processor time for each of them, because it is
    woken and its caches are cold.
    """

    put_call_us: float  # a call that puts jobs
    put_job_us: float  # each job of the call
    put_kb_us: float  # each KiB of payload
    put_call_bytes: float  # network, both directions
    put_job_bytes: float  # besides the payload
    sparse_us: float  # from wake-up to settled, without the put, on a busy server
    cold_us: float  # what a sparse job costs more on a server that sleeps between calls
    sparse_bytes: float  # besides payload and result
    dense_us: float
    dense_bytes: float
    run_kb_us: float  # each KiB of payload that is claimed, and of result that is settled
    exchange_ms: float  # the time that one exchange takes, which bounds how many a worker makes
    renewal_us: float  # a lease that is renewed
    idle_us: float  # an idle worker, per second, in a fleet of up to 100
    idle_bytes: float  # network, per second
    tick_us: float  # upkeep of one queue or partition, every 5 s
    schedules_us: float  # looking for due schedules of one queue, every second
    event_us: float  # an event that a relay reads
    waiting_bytes: float  # memory (Valkey) or disk of a waiting job, besides its payload
    ended_bytes: float  # the same of an ended job, besides payload and result
    event_bytes: float  # the same of an event in the log
    connections: float  # of one worker process to one server
    connection_bytes: float  # memory of the server per connection
    log_bytes: float = 0.0  # write-ahead log per sparse job (PostgreSQL), besides its data
    dense_log_bytes: float = 0.0  # the same per dense job


class PartitionCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a partitioned queue costs besides, on Valkey."""

    job_us: float  # per sparse job: waking and falling asleep are calls of their own
    job_bytes: float
    look_call_us: float  # a look at the counters of partitions, per primary that it reaches
    look_us: float  # the same per partition
    look_bytes: float  # network, per partition
    dense_us: float  # per dense job: its calls reach several partitions
    primary_us: float  # per sparse job and primary after the first, to wake it by looks
    home_us: float  # the part of a sparse job's waking that is at the queue's own primary


class ProcessCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a Python process spends per job: the worker or the jq-server."""

    sparse_us: float
    dense_us: float
    memory: float  # bytes of the process


class ServerCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What a jq-server spends, in front of Valkey."""

    put_call_us: float
    put_job_us: float
    sparse_us: float
    cold_us: float
    dense_us: float
    kb_us: float  # each KiB of payload or result that passes through
    put_bytes: float  # network between client and server per job that is put alone
    sparse_bytes: float
    dense_bytes: float
    exchange_ms: float
    idle_us: float
    memory: float


class PipelineCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What events cost after the store."""

    relay_us: float  # the relay's processor time per event
    line_bytes: float  # an event as a line of JSON
    spark_us: float  # Spark's processor time per event, from the topic into all tables
    lake_bytes: float  # an event in the lake's tables
    kafka_partition_bytes: (
        float  # bytes per second that one partition should carry: a rule of thumb
    )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All measured costs."""

    about: About
    valkey: StoreCosts
    postgres: StoreCosts
    sqlite: StoreCosts
    partitions: PartitionCosts
    worker: ProcessCosts
    server: ServerCosts
    pipeline: PipelineCosts

    def store(self, kind: str) -> StoreCosts:
        """The costs of a kind of store."""
        found: StoreCosts = getattr(self, kind)
        return found


def parse_measured(text: str, name: str) -> Measured:
    """The constants in a TOML file. Raises ConfigError, which says what is wrong."""
    try:
        found = msgspec.convert(tomllib.loads(text), Measured, strict=False)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{name} is not a file of measured costs: {error}") from error
    for part, costs in msgspec.to_builtins(found).items():
        for cost, value in costs.items():
            if isinstance(value, float) and not 0 <= value < inf:
                raise ConfigError(f"{name}: {part}.{cost} is a cost, and cannot be {value:g}")
    for kind in ("valkey", "postgres", "sqlite"):
        if not (found.store(kind).sparse_us and found.store(kind).dense_us):
            raise ConfigError(f"{name}: {kind}.sparse_us and {kind}.dense_us must be above 0")
    if not found.pipeline.kafka_partition_bytes:
        raise ConfigError(
            f"{name}: pipeline.kafka_partition_bytes is what a partition carries per second, and "
            "must be above 0"
        )
    return found


def read_measured(path: Path) -> Measured:
    """The constants of the user's own machine."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return parse_measured(text, str(path))


@cache
def default_measured() -> Measured:
    """The constants that come with jobq."""
    file = resources.files("jobq.operations.capacity") / "measured.toml"
    return parse_measured(file.read_text(), "measured.toml")
