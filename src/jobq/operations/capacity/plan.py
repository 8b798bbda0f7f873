"""How many of each part a load needs, and which figure decides that."""

from __future__ import annotations

from math import ceil

import msgspec

from jobq.operations.capacity.constants import Measured
from jobq.operations.capacity.load import Load
from jobq.operations.capacity.use import Fleet, Use, spread, use

MAX_PRIMARIES = 1_000
"""The size of a Valkey Cluster up to which its documentation promises that it scales."""
PARTITIONS_PER_PRIMARY = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers to choose from. More partitions are spread more evenly, and cost more looks."""
POSTGRES_CORES = 16
"""Cores up to which this model believes that PostgreSQL's throughput grows with them."""
MAX_CLIENTS = 10_000
"""Valkey's default `maxclients`."""
QUEUES_PER_PRIMARY = 16
"""Queues that are spread evenly enough over primaries without partitions."""
EXECUTOR_CORES = 4
"""Cores of one Spark executor."""
MIN_KAFKA_PARTITIONS = 3


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the answer."""

    what: str
    count: int
    why: str  # the figure that decides


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: what the load needs, what that costs, and what to know about it."""

    load: Load
    fits: bool
    fleet: Fleet
    needs: list[Need]
    use: Use
    store_bytes: float  # memory of each Valkey primary, or disk of a SQL store
    network_bytes_per_s: float  # of the store
    lake_bytes: float
    notes: list[str]


def plan(load: Load, measured: Measured) -> Plan:
    """Size an installation for the load. If it does not fit, a note says why."""
    workers, why_workers = _workers(load, measured)
    servers, why_servers = _servers(load, measured, workers)
    fleet = Fleet(workers=workers, servers=servers)
    sized = {"valkey": _valkey, "postgres": _postgres, "sqlite": _sqlite}[load.store]
    fleet, needs, notes, fits = sized(load, fleet, measured)
    if load.server:
        needs.append(Need(what="jq-servers", count=servers, why=why_servers))
    needs.append(Need(what="worker processes", count=workers, why=why_workers))
    if load.idle_workers:
        needs.append(
            Need(what="idle workers", count=load.idle_workers, why="as given; see the store's load")
        )
    found = use(load, fleet, measured)
    lake = _pipeline(load, measured, needs, notes)
    _notes(load, fleet, found, measured, notes)
    per_primary = sum(found.memory.values()) / (1 if load.store != "valkey" else fleet.primaries)
    return Plan(
        load=load,
        fits=fits,
        fleet=fleet,
        needs=needs,
        use=found,
        store_bytes=per_primary,
        network_bytes_per_s=found.store_bytes_per_s,
        lake_bytes=lake,
        notes=notes,
    )


# ── workers and servers ───────────────────────────────────────────────────────────────────────────


def _workers(load: Load, measured: Measured) -> tuple[int, str]:
    """Worker processes: enough slots, and enough processor time for jobq and the handlers."""
    slots = load.jobs_per_s * load.run_s / (1 - load.headroom)
    by_slots = max(1, ceil(slots / load.concurrency))
    workers, by_cpu = by_slots, 0
    for _ in range(20):  # more workers need more calls per job, so this converges from below
        found = use(load, Fleet(workers=workers, servers=1), measured)
        cpu = found.worker_us + load.jobs_per_s * load.cpu_s * 1e6
        by_cpu = ceil(cpu / load.busy)
        if max(by_slots, by_cpu) <= workers:
            break
        workers = max(by_slots, by_cpu)
    if by_cpu > by_slots:
        per_job = cpu / load.jobs_per_s
        return workers, f"processor time: {per_job:,.0f} µs per job, one core per process"
    return workers, f"slots: {slots:,.0f} jobs run at once, {load.concurrency} per process"


def _servers(load: Load, measured: Measured, workers: int) -> tuple[int, str]:
    """jq-servers: each is one Python process, which uses one core."""
    if not load.server:
        return 0, ""
    found = use(load, Fleet(workers=workers, servers=1), measured)
    each = found.server_us / load.jobs_per_s
    servers = max(1, ceil(found.server_us / load.busy))
    return servers, f"processor time: {each:,.0f} µs per job, one core per process"


# ── stores ────────────────────────────────────────────────────────────────────────────────────────

_Sized = tuple[Fleet, list[Need], list[str], bool]


def _valkey(load: Load, fleet: Fleet, measured: Measured) -> _Sized:
    """The smallest Cluster whose busiest primary stays within the headroom."""
    best: tuple[float, Fleet] | None = None
    for primaries in _sizes():
        options = [_on(fleet, primaries, p) for p in _partitions(load, primaries)]
        busiest, tried = min(
            ((use(load, option, measured).busiest_us, option) for option in options),
            key=lambda pair: pair[0],
        )
        if best is None or busiest < best[0]:
            best = busiest, tried
        if busiest <= load.busy:
            return tried, _valkey_needs(load, tried, measured), [], True
    assert best is not None
    busiest, tried = best
    note = (
        f"too much for {load.all_queues:,} queue{'s' if load.all_queues > 1 else ''}: the best "
        f"Cluster ({tried.primaries} primaries, {tried.partitions} partitions per queue) has a "
        f"primary that needs {busiest / 1e6:.1f} cores, and a primary uses one. Divide the jobs "
        "among more queues, each with its own workers"
    )
    return tried, _valkey_needs(load, tried, measured), [note], False


def _sizes() -> list[int]:
    """Sizes of Clusters to try. A Cluster has at least three primaries."""
    return [1, *range(3, 64), *range(64, 256, 4), *range(256, MAX_PRIMARIES + 1, 16)]


def _partitions(load: Load, primaries: int) -> list[int]:
    """Partitions per queue to try. Many queues need none to be spread evenly."""
    if primaries == 1:
        return [1]
    found = {ceil(n * primaries / load.all_queues) for n in PARTITIONS_PER_PRIMARY}
    return sorted(found)


def _on(fleet: Fleet, primaries: int, partitions: int) -> Fleet:
    return msgspec.structs.replace(fleet, primaries=primaries, partitions=partitions)


def _valkey_needs(load: Load, fleet: Fleet, measured: Measured) -> list[Need]:
    found = use(load, fleet, measured)
    what, most = max(found.store_us.items(), key=lambda item: item[1])
    why = (
        f"the busiest uses {found.busiest_us / 1e6:.0%} of its core; "
        f"{most / found.total_us:.0%} of that is {what}"
    )
    needs = [Need(what="Valkey primaries", count=fleet.primaries, why=why)]
    if fleet.primaries > 1:
        uneven = max(spread(load.all_queues, fleet.partitions, fleet.primaries)) * fleet.primaries
        why = f"the busiest primary then has {uneven:.2f} times the mean"
        needs.append(Need(what="partitions per queue", count=fleet.partitions, why=why))
    return needs


def _postgres(load: Load, fleet: Fleet, measured: Measured) -> _Sized:
    """One PostgreSQL, or a shard for each part of the tenants or queues."""
    found = use(load, fleet, measured)
    cores = found.total_us / load.busy
    why = f"{found.total_us / load.jobs_per_s:,.0f} µs of processor time per job"
    usable = min(load.cores, POSTGRES_CORES)
    if cores <= usable:
        need = Need(what="PostgreSQL servers", count=1, why=f"{why}, {cores:.1f} of {usable} cores")
        return fleet, [need], [], True
    shards = ceil(cores / usable)
    need = Need(
        what="PostgreSQL servers",
        count=shards,
        why=f"{why}, {cores:.1f} cores, {usable} per server",
    )
    by = "tenants" if load.tenants >= shards else "queues"
    note = (
        f"too much for one PostgreSQL: jobq does not divide a store, so divide the {by} among "
        f"{shards} databases on servers of {usable} cores, each with its own workers"
    )
    return fleet, [need], [note], False


def _sqlite(load: Load, fleet: Fleet, measured: Measured) -> _Sized:
    """One file on one machine, which has one writer at a time."""
    found = use(load, fleet, measured)
    each = found.total_us / load.jobs_per_s
    share = found.total_us / 1e6
    why = f"{each:,.0f} µs per job while one process writes: {share:.0%} of the time"
    needs = [Need(what="SQLite files", count=1, why=why)]
    if found.total_us <= load.busy:
        return fleet, needs, [], True
    most = load.busy / each
    note = f"too much for one SQLite file, which carries {most:,.0f} of these jobs per second"
    return fleet, needs, [note], False


# ── events ────────────────────────────────────────────────────────────────────────────────────────


def _pipeline(load: Load, measured: Measured, needs: list[Need], notes: list[str]) -> float:
    """Add relays, Kafka partitions and Spark executors. Returns the size of the lake in bytes."""
    costs, rate = measured.pipeline, load.events_per_s
    if not load.read_by_relay:
        return 0.0
    relays = max(1, ceil(rate * costs.relay_us / load.busy))
    why = f"{rate:,.0f} events/s, {costs.relay_us:.0f} µs each"
    needs.append(Need(what="relays", count=relays, why=why))
    if relays > load.all_queues:
        most = load.busy / costs.relay_us * load.all_queues
        notes.append(
            f"one relay ships a whole queue, so {load.all_queues:,} queues ship at most "
            f"{most:,.0f} of {rate:,.0f} events/s: divide the jobs among {relays} queues"
        )
    cores = ceil(rate * costs.spark_us / load.busy) if load.lake else 0
    if load.kafka:
        by_bytes = ceil(rate * costs.line_bytes / costs.kafka_partition_bytes)
        partitions = max(MIN_KAFKA_PARTITIONS, by_bytes, cores)
        why = f"{rate * costs.line_bytes / 1e6:,.1f} MB/s of events, {cores} cores that read them"
        needs.append(Need(what="Kafka partitions", count=partitions, why=why))
    if not load.lake:
        return 0.0
    why = f"{cores} cores: {costs.spark_us:.0f} µs of processor time per event"
    needs.append(Need(what="Spark executors", count=ceil(cores / EXECUTOR_CORES), why=why))
    return rate * load.kept_s * costs.lake_bytes


def _notes(load: Load, fleet: Fleet, found: Use, measured: Measured, notes: list[str]) -> None:
    if load.store == "valkey" and found.connections > MAX_CLIENTS:
        notes.append(
            f"each primary has {found.connections:,} connections: raise maxclients "
            f"(default {MAX_CLIENTS:,}), or put jq-servers in front"
        )
    looks = found.store_us.get("looks", 0.0)
    if looks > found.total_us / 4:
        share = f"{looks / found.total_us:.0%}"
        notes.append(
            f"workers look into {fleet.partitions} partitions, which is {share} of the store's work"
            f"{_apart(load, fleet, found, measured)}"
        )


def _apart(load: Load, fleet: Fleet, found: Use, measured: Measured) -> str:
    """What several queues would need instead of partitions."""
    work = found.total_us - found.store_us["looks"] - found.store_us["partitions"]
    queues = QUEUES_PER_PRIMARY * ceil(work / load.busy)
    for primaries in _sizes():
        apart = msgspec.structs.replace(load, queues=queues)
        if use(apart, _on(fleet, primaries, 1), measured).busiest_us <= load.busy:
            return (
                f": {queues:,} queues, each with workers of its own, need {primaries} primaries "
                "and no partitions"
            )
    return ""
