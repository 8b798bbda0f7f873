"""What a load costs each part of a given fleet."""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache

import msgspec

from jobq.core.records.defaults import KEPT_JOBS, LOG_CAP, LOG_EVENTS
from jobq.core.rules.fleet import stretch
from jobq.operations.capacity.constants import Measured, PartitionCosts, StoreCosts
from jobq.operations.capacity.load import EVENTS_PER_JOB, Load

KIB = 1024
SLOTS = 16_384  # of a Valkey Cluster
SAMPLED = 20_000
"""Partitions of all queues together that are placed, to see how even the spread is."""
TICK_S, SCHEDULES_S = 5.0, 1.0
"""Seconds between passes of upkeep and of schedules (engine/identity.py)."""
RENEW_S, RENEW_AGE_S = 5.0, 2.5
"""Seconds between renewals of leases of 15 s, and the age of the youngest that is renewed."""
RELAY_OUTAGE_S = 3_600.0
"""Seconds of events that the store keeps while the relay's target is unavailable."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are of everything that the model counts."""

    workers: int  # worker processes that have work
    primaries: int = 1
    partitions: int = 1  # of each queue
    servers: int = 0  # jq-servers

    @property
    def reached(self) -> int:
        """Primaries that the partitions of a queue can be on."""
        return min(self.primaries, self.partitions)


class Waking(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs to wake servers that sleep between calls, in µs of processor time per second.

    It is no part of what decides a size: a server that has more to do sleeps less."""

    store_us: float  # of all primaries together
    home_us: float  # of them, where the names of partitioned queues are
    server_us: float  # of all jq-servers together


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What a load costs. `_us` is µs of processor time per second, without waking."""

    store_us: dict[str, float]  # of all primaries together, by reason
    home_us: float  # of them, what is spent where the names of partitioned queues are
    busiest_us: float  # of the busiest primary
    store_bytes_per_s: float  # network of all primaries together
    memory: dict[str, float]  # bytes of all primaries together (disk, for SQL stores), by reason
    connections: int  # to the busiest primary
    worker_us: float  # of all workers together, without handlers
    server_us: float  # of all jq-servers together
    server_bytes_per_s: float  # network between jq-servers and their clients
    log_bytes_per_s: float  # write-ahead log
    calls: float  # the calls per job, as a part of those of a sparse job
    waking: Waking

    @property
    def total_us(self) -> float:
        """Processor time of all primaries together."""
        return sum(self.store_us.values())

    def primary_us(self, partitions: float, homes: float) -> float:
        """Processor time of a primary with these parts of all partitions and of all names."""
        return _primary_us(self.store_us, self.home_us, partitions, homes)

    def primary_waking_us(self, partitions: float, homes: float) -> float:
        """What waking such a primary costs besides."""
        home = self.waking.home_us
        return (self.waking.store_us - home) * partitions + home * homes


def use(load: Load, fleet: Fleet, measured: Measured) -> Use:
    """What the load costs the parts of this fleet."""
    costs = measured.store(load.store)
    calls = exchanges(load, fleet, _exchange_ms(load, measured))
    handles = fleet.servers if load.server else fleet.workers + load.idle_workers
    split = measured.partitions if fleet.partitions > 1 else None
    server_us = _server_us(load, fleet, measured, calls) if load.server else 0.0
    log_bytes = 0.0
    if costs.log_bytes:
        log_bytes = mix(costs.log_bytes, costs.dense_log_bytes, calls) + 2 * load.payload
        log_bytes += load.result
    connections = _connections(fleet, handles, costs)
    parts = _store_us(load, fleet, costs, split, calls)
    home_us = load.jobs_per_s * calls * split.job_us if split is not None else 0.0
    return Use(
        store_us=parts,
        home_us=home_us,
        busiest_us=_primary_us(
            parts,
            home_us,
            max(spread(load.all_queues, fleet.partitions, fleet.primaries)),
            max(spread(load.all_queues, 1, fleet.primaries)),
        ),
        store_bytes_per_s=_store_bytes(load, fleet, costs, split, calls, handles),
        memory=_memory(load, fleet, costs, connections),
        connections=round(connections),
        worker_us=load.jobs_per_s * mix(measured.worker.sparse_us, measured.worker.dense_us, calls),
        server_us=server_us,
        server_bytes_per_s=_server_bytes(load, measured, calls) if load.server else 0.0,
        log_bytes_per_s=load.jobs_per_s * log_bytes,
        calls=calls,
        waking=_waking(load, fleet, measured, load.jobs_per_s * calls, parts, server_us),
    )


def _primary_us(parts: dict[str, float], home_us: float, partitions: float, homes: float) -> float:
    """Workers are recorded on one primary, which may be this one."""
    work = sum(parts.values()) - parts["workers"] - home_us
    return work * partitions + home_us * homes + parts["workers"]


def _connections(fleet: Fleet, handles: int, costs: StoreCosts) -> float:
    """Connections to the busiest primary.

    A worker of a queue without partitions calls the queue's primary, and the two where workers are
    registered and the leader is elected, which may be the same.
    """
    if fleet.primaries == 1 or fleet.partitions > 1:
        return handles * costs.connections
    return handles * (costs.connections / fleet.primaries + 2)


def mix(sparse: float, dense: float, calls: float) -> float:
    """The cost per job between sparse and dense: it grows with the number of calls per job."""
    return dense + (sparse - dense) * calls


def exchanges(load: Load, fleet: Fleet, exchange_ms: float) -> float:
    """The calls per job, as a part of those of a sparse job (1: each job is alone).

    A worker has one exchange in flight, and jobs that end or come meanwhile share the next one.
    So the number of calls per job falls as the worker has more jobs per exchange time. Jobs that
    are enqueued together share all calls. Those of a partitioned queue come in a group from each
    primary.
    """
    together = max(1.0, load.enqueue_batch / fleet.reached)
    rate = load.jobs_per_s / max(1, fleet.workers)
    return 1 / (together + SPARSE_CALLS * rate * exchange_ms / 1000)


SPARSE_CALLS = 3
"""Exchanges of a sparse job: the claim, a look that finds nothing more, and the settlement."""
LOOKS = 3
"""Looks at all partitions per sparse job: one when the job wakes the worker, and two when the
worker falls asleep again, before it is recorded as asleep and after."""


def asleep_share(busy_us: float, cold_us: float, processors: float) -> float:
    """The part of the time that a server sleeps, if each call that wakes it costs more.

    Solves busy = warm + cold · (1 - busy), in parts of its processors."""
    busy, cold = busy_us / 1e6 / processors, cold_us / 1e6 / processors
    return max(0.0, 1 - (busy + cold) / (1 + cold))


def _waking(
    load: Load,
    fleet: Fleet,
    measured: Measured,
    sparse: float,
    parts: dict[str, float],
    server_us: float,
) -> Waking:
    """What `sparse` jobs per second cost more because servers sleep between their calls."""
    costs, split = measured.store(load.store), measured.partitions
    cold = sparse * (costs.cold_us + split.primary_us * (fleet.reached - 1))
    processors = load.cores if load.store == "postgres" else fleet.primaries
    asleep = asleep_share(sum(parts.values()), cold, processors)
    server = sparse * measured.server.cold_us if load.server else 0.0
    return Waking(
        store_us=cold * asleep,
        home_us=sparse * split.home_us * asleep if fleet.partitions > 1 else 0.0,
        server_us=server * asleep_share(server_us, server, max(1, fleet.servers)),
    )


def _exchange_ms(load: Load, measured: Measured) -> float:
    return measured.server.exchange_ms if load.server else measured.store(load.store).exchange_ms


def _store_us(
    load: Load, fleet: Fleet, costs: StoreCosts, split: PartitionCosts | None, calls: float
) -> dict[str, float]:
    """Processor time of the store by reason, in µs per second."""
    rate, places = load.jobs_per_s, load.all_queues * fleet.partitions
    workers = fleet.workers + load.idle_workers
    put = (
        costs.put_call_us / expected_batch(load.enqueue_batch, fleet.partitions) + costs.put_job_us
    )
    parts = {
        "puts": rate * (put + costs.put_kb_us * load.payload / KIB),
        "runs": rate
        * (
            mix(costs.sparse_us, costs.dense_us, calls)
            + costs.run_kb_us * (load.payload + load.result) / KIB
        ),
        "renewals": rate * costs.renewal_us * max(0.0, load.run_s - RENEW_AGE_S) / RENEW_S,
        "workers": workers * costs.idle_us / stretch(workers),
        "upkeep": places * costs.tick_us / TICK_S,
        "schedules": load.all_queues * costs.schedules_us / SCHEDULES_S,
        "relay": load.events_per_s * costs.event_us if load.read_by_relay else 0.0,
    }
    if split is not None:
        look = split.look_call_us * fleet.reached + split.look_us * fleet.partitions
        parts["partitions"] = rate * mix(split.job_us, split.dense_us, calls)
        parts["looks"] = rate * calls * LOOKS * look
    return parts


def expected_batch(jobs: int, partitions: int) -> float:
    """The mean number of jobs per partition that gets any of them."""
    reached = partitions * (1 - (1 - 1 / partitions) ** jobs)
    return jobs / reached


def _store_bytes(
    load: Load,
    fleet: Fleet,
    costs: StoreCosts,
    split: PartitionCosts | None,
    calls: float,
    handles: int,
) -> float:
    put = (
        costs.put_call_bytes / expected_batch(load.enqueue_batch, fleet.partitions)
        + costs.put_job_bytes
    )
    run = mix(costs.sparse_bytes, costs.dense_bytes, calls)
    if split is not None:
        run += calls * (split.job_bytes + LOOKS * split.look_bytes * fleet.partitions)
    # The payload travels to the store and to the worker, the result to the store.
    per_job = put + run + 2 * load.payload + load.result
    read = EVENTS_PER_JOB * costs.event_bytes if load.read_by_relay else 0.0
    return load.jobs_per_s * (per_job + read) + handles * costs.idle_bytes / stretch(handles)


def _memory(load: Load, fleet: Fleet, costs: StoreCosts, connections: float) -> dict[str, float]:
    """Bytes in the store by reason: memory of Valkey, disk of a SQL store."""
    places = load.all_queues * fleet.partitions
    kept = min(load.jobs_per_s * 86_400, KEPT_JOBS * places)
    log: float = LOG_EVENTS[load.store] * places
    if load.read_by_relay:
        log += min(load.events_per_s * RELAY_OUTAGE_S, LOG_CAP[load.store] * places)
    found = {
        "waiting jobs": load.jobs_per_s * load.backlog_s * (costs.waiting_bytes + load.payload),
        "running jobs": load.jobs_per_s * load.run_s * (costs.waiting_bytes + load.payload),
        "ended jobs": kept * (costs.ended_bytes + load.payload + load.result),
        "event log": log * costs.event_bytes,
    }
    if load.store == "valkey":
        found["connections"] = connections * fleet.primaries * costs.connection_bytes
    return found


def _server_us(load: Load, fleet: Fleet, measured: Measured, calls: float) -> float:
    costs, workers = measured.server, fleet.workers + load.idle_workers
    put = costs.put_call_us / load.enqueue_batch + costs.put_job_us
    size = costs.kb_us * (2 * load.payload + load.result) / KIB
    idle = workers * costs.idle_us / stretch(workers)
    return load.jobs_per_s * (put + mix(costs.sparse_us, costs.dense_us, calls) + size) + idle


def _server_bytes(load: Load, measured: Measured, calls: float) -> float:
    costs = measured.server
    run = mix(costs.sparse_bytes, costs.dense_bytes, calls)
    put = costs.put_bytes  # of a job put alone: an upper bound for batches
    return load.jobs_per_s * (put + run + 2 * load.payload + load.result)


@lru_cache(maxsize=512)
def spread(queues: int, partitions: int, primaries: int) -> tuple[float, ...]:
    """The share of each primary of a Cluster whose slots are divided evenly.

    Queues and partitions are placed by a hash of their names, so some primaries get more. The
    names here are examples: other names give another, similar spread. Of many queues some are
    counted, which makes the spread a little less even than it is.
    """
    if primaries == 1:
        return (1.0,)
    queues = min(queues, max(1, SAMPLED // partitions))
    counts = [0] * primaries
    for queue in range(queues):
        name = f"tenant-{queue}:jobs"
        tags = [name] if partitions == 1 else [f"{name}:{p}" for p in range(partitions)]
        for tag in tags:
            counts[crc_hqx(tag.encode(), 0) % SLOTS * primaries // SLOTS] += 1
    total = queues * partitions
    return tuple(count / total for count in counts)
