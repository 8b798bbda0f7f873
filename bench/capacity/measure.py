"""Measures the costs of jobq/operations/capacity/constants.py, on servers that this module
starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from bench.capacity import places
from bench.capacity.meters import Sample, cpu_us, resident
from bench.capacity.places import Target, connections
from bench.capacity.program import Process, Settings, started
from jobq.core.records.defaults import LOG_EVENTS
from jobq.operations.capacity.constants import (
    PartitionCosts,
    ProcessCosts,
    ServerCosts,
    StoreCosts,
)
from jobq.operations.capacity.use import LOOKS, SPARSE_CALLS

PAYLOAD, BIG, RESULT = 100, 4_096, 2
"""Bytes of arguments and results. The text of an argument has 100 or 4,096 characters."""
FRAME = 9
"""Bytes of JSON around the text: [["…"],{}]."""
RATE = 120.0
"""Sparse jobs per second: each ends long before the next one comes."""
IDLE_WORKERS, IDLE_S = 20, 12
"""Workers whose idleness is measured, and for how many seconds."""
SQL_EVENT_BYTES = 100.0
"""Bytes of an event in a SQL store. Not measured: tables keep the space of removed rows."""


class Sizes(NamedTuple):
    """How much each measurement does."""

    single: int = 1_500
    batched: int = 20_000
    big: int = 3_000
    sparse: int = 500
    exchanges: int = 300
    queues: int = 100


class Put(NamedTuple):
    """Costs of puts, from those of jobs put alone, by hundreds, and with a large payload."""

    call: Sample
    job: Sample
    kb_us: float


def cost(target: Target, action: Callable[[], object]) -> Sample:
    """What an action costs the server."""
    before = target.meter()
    action()
    return target.meter().since(before)


def puts(target: Target, producer: Process, sizes: Sizes) -> Put:
    """Measure puts. The queue then has sizes.single + sizes.batched jobs more."""
    alone = cost(target, lambda: producer.ask("put", n=sizes.single)).per(sizes.single)
    hundred = cost(target, lambda: producer.ask("put", n=sizes.batched, batch=100)).per(
        sizes.batched
    )
    call = Sample(*((a - b) / 0.99 for a, b in zip(alone, hundred, strict=True)))
    job = Sample(*(a - c for a, c in zip(alone, call, strict=True)))
    # Memory is the same in both ways: take it from the larger number of jobs.
    job = job._replace(stored=hundred.stored, bytes=job.bytes - PAYLOAD - FRAME)
    with started(Settings(url=target.url, queue="big")) as other:
        large = cost(target, lambda: other.ask("put", n=sizes.big, batch=100, payload=BIG)).per(
            sizes.big
        )
    return Put(call, job, (large.cpu_us - hundred.cpu_us) / ((BIG - PAYLOAD) / 1024))


class Runs(NamedTuple):
    """Costs of runs: of the server, and of the worker's process."""

    server: Sample
    worker_us: float
    exchanges: float  # per job


def dense(target: Target, producer: Process, queue: str, n: int, **given: Any) -> Runs:
    """Work off n jobs that wait, at concurrency 100."""
    producer.ask("pause", paused=True)
    with started(Settings(url=target.url, queue=queue, workers=1, **given)) as worker:
        before, sample = worker.ask("report"), target.meter()
        producer.ask("pause", paused=False)
        after = worker.ask("until", n=n)
        found = target.meter().since(sample)
        return _runs(found, before, after, n)


def _runs(found: Sample, before: dict[str, Any], after: dict[str, Any], n: int) -> Runs:
    used = (after["cpu_us"] - before["cpu_us"]) / n
    return Runs(found.per(n), used, (after["exchanges"] - before["exchanges"]) / n)


class Sparse(NamedTuple):
    """Costs of a sparse job without its put, in µs and bytes."""

    us: float
    bytes: float
    worker_us: float
    log: float  # with its put


def sparse_queue(partitions: int) -> str:
    """The name of a queue for sparse jobs."""
    return f"sparse-{partitions}"


def sparse(target: Target, put: Put, many: Runs, n: int, partitions: int = 1) -> Sparse:
    """Jobs that come one by one to a worker that has nothing else to do.

    On a busy machine the worker may be late, and then makes fewer calls per job. So the costs are
    those of the calls that were made, for as many calls as a sparse job needs.
    """
    settings = Settings(url=target.url, queue=sparse_queue(partitions), partitions=partitions)
    with (
        started(msgspec.structs.replace(settings, workers=1, concurrency=10)) as worker,
        started(settings) as producer,
    ):
        producer.ask("put", n=4 * partitions)  # every partition has counters then
        worker.ask("until", n=1 + 4 * partitions)
        before, sample = worker.ask("report"), target.meter()
        producer.ask("pace", rate=RATE, n=n)
        after = worker.ask("until", n=n + 1 + 4 * partitions)
        runs = _runs(target.meter().since(sample), before, after, n)
    calls = min(1.0, runs.exchanges / SPARSE_CALLS)
    us = runs.server.cpu_us - put.call.cpu_us - put.job.cpu_us
    size = runs.server.bytes - put.call.bytes - put.job.bytes - 2 * (PAYLOAD + FRAME) - RESULT
    dense_bytes = many.server.bytes - PAYLOAD - FRAME - RESULT

    def alone(found: float, dense: float) -> float:
        return dense + (found - dense) / calls

    return Sparse(
        alone(us, many.server.cpu_us),
        alone(size, dense_bytes),
        alone(runs.worker_us, many.worker_us),
        runs.server.log,
    )


def cycle(target: Target, put: Put, sizes: Sizes, partitions: int = 1) -> float:
    """A sparse job on a server that is busy, without its put, in µs."""
    with started(Settings(url=target.url, queue="cycle")) as producer:
        producer.ask("cycle", n=sizes.single, partitions=partitions)
        found = cost(target, lambda: producer.ask("run")).per(sizes.single)
    return found.cpu_us - put.call.cpu_us - put.job.cpu_us


def idle(target: Target) -> Sample:
    """An idle worker, per second."""
    with started(Settings(url=target.url, queue="idle", workers=IDLE_WORKERS)):
        time.sleep(2)
        before, began = target.meter(), time.monotonic()
        time.sleep(IDLE_S)
        return target.meter().since(before).per(IDLE_WORKERS * (time.monotonic() - began))


def single_calls(target: Target, sizes: Sizes) -> dict[str, float]:
    """Calls that workers and leaders make besides exchanges."""
    with started(Settings(url=target.url, queue="calls")) as producer:
        producer.ask("lease", n=500)
        renewal = cost(target, lambda: producer.ask("renew", times=20)).per(500 * 20)
        producer.ask("make_queues", n=sizes.queues)
        producer.ask("tick", times=1)
        tick = cost(target, lambda: producer.ask("tick", times=20)).per(sizes.queues * 20)
        due = cost(target, lambda: producer.ask("schedules", times=20)).per(sizes.queues * 20)
        took = producer.ask("exchange", n=sizes.exchanges, batch=10)["ms"]
    return {
        "renewal_us": renewal.cpu_us,
        "tick_us": tick.cpu_us,
        "schedules_us": due.cpu_us,
        "exchange_ms": took,
    }


def store(target: Target, sizes: Sizes) -> tuple[StoreCosts, ProcessCosts, dict[str, float]]:
    """The costs of Valkey or PostgreSQL, of a worker on it, and of its relay."""
    quiet = idle(target)
    calls = single_calls(target, sizes)
    with started(Settings(url=target.url)) as producer:
        producer.ask("register")
        put = puts(target, producer, sizes)
        n = sizes.single + sizes.batched + 1
        many = dense(target, producer, "load", n)
        with started(Settings(url=target.url, queue="big")) as other:
            large = dense(target, other, "big", sizes.big + 1, result=BIG)
        few = sparse(target, put, many, sizes.sparse)
        warm = min(few.us, cycle(target, put, sizes))
        full = target.meter()
        relayed: dict[str, Any] = {}
        reading = cost(target, lambda: relayed.update(producer.ask("relay")))
        producer.ask("tick", times=50)
        freed = full.stored - target.meter().stored
        links, memory = _connections(target)
    events = relayed["events"]
    # Upkeep has removed what the relay has read, except the last events of each queue.
    kept = LOG_EVENTS["valkey"]
    event_bytes = freed / (3 * n - kept) if target.ports and 3 * n > kept else SQL_EVENT_BYTES
    size = (BIG - PAYLOAD + BIG - RESULT) / 1024
    costs = StoreCosts(
        put_call_us=put.call.cpu_us,
        put_job_us=put.job.cpu_us,
        put_kb_us=max(0.0, put.kb_us),
        put_call_bytes=put.call.bytes,
        put_job_bytes=put.job.bytes,
        sparse_us=warm,
        cold_us=max(0.0, few.us - warm),
        sparse_bytes=few.bytes,
        dense_us=many.server.cpu_us,
        dense_bytes=many.server.bytes - PAYLOAD - FRAME - RESULT,
        run_kb_us=max(0.0, (large.server.cpu_us - many.server.cpu_us) / size),
        idle_us=quiet.cpu_us,
        idle_bytes=quiet.bytes,
        event_us=reading.cpu_us / events,
        waiting_bytes=put.job.stored - PAYLOAD - FRAME - event_bytes,
        ended_bytes=put.job.stored
        + many.server.stored
        - PAYLOAD
        - FRAME
        - RESULT
        - 3 * event_bytes,
        event_bytes=event_bytes,
        connections=links,
        connection_bytes=memory,
        log_bytes=_log(few.log),
        dense_log_bytes=_log(put.job.log + many.server.log),
        **calls,
    )
    worker = ProcessCosts(
        sparse_us=few.worker_us, dense_us=many.worker_us, memory=_worker_memory(target)
    )
    relay = {"relay_us": relayed["cpu_us"] / events, "line_bytes": relayed["bytes"] / events}
    return costs, worker, relay


def _log(found: float) -> float:
    """Bytes of write-ahead log besides the data: the payload is written by the put and the end."""
    return max(0.0, found - 2 * (PAYLOAD + FRAME) - RESULT)


def _worker_memory(target: Target) -> float:
    with started(Settings(url=target.url, queue="idle", workers=1)) as worker:
        return float(resident(worker.pid))


def _connections(target: Target) -> tuple[float, float]:
    """Connections of one worker, and the memory of each (Valkey only)."""
    if not target.ports:
        return 4.0, 0.0
    (port,) = target.ports
    before, memory = connections(port), target.meter().stored
    with started(Settings(url=target.url, queue="idle", workers=1)):
        time.sleep(1)
        links = connections(port) - before
        used = (target.meter().stored - memory) / links
    return float(links), used


FEW, MANY = 4, 24
"""Partitions of the queues that are compared."""


def partitions(sizes: Sizes) -> PartitionCosts:
    """A partitioned queue on one Valkey, compared with a plain one and with one on a Cluster."""
    with places.valkey() as target, started(Settings(url=target.url)) as producer:
        put = puts(target, producer, sizes)
        full = dense(target, producer, "load", sizes.single + sizes.batched + 1)
        plain, small = (sparse(target, put, full, sizes.sparse, parts) for parts in (1, FEW))
        busy = cycle(target, put, sizes, FEW) - cycle(target, put, sizes)
        one, wide = (_look(target, producer, sizes.single, width) for width in (1, 17))
    look = max(0.0, wide.cpu_us - one.cpu_us) / 16
    look_bytes = (wide.bytes - one.bytes) / 16
    with places.cluster() as target:
        ends, apart = _cluster(target, put, full, sizes)
    with places.valkey() as target:
        settings = Settings(url=target.url, queue="parted", partitions=16)
        with started(settings) as producer:
            producer.ask("put", n=10_000, batch=1_000)
            spread = dense(target, producer, "parted", 10_001, partitions=16)
    job_us = max(0.0, busy - LOOKS * (one.cpu_us + (FEW - 1) * look))
    looks = LOOKS * ((one.cpu_us - look) * len(ends) + look * MANY)
    return PartitionCosts(
        job_us=job_us,
        job_bytes=max(0.0, small.bytes - plain.bytes - LOOKS * FEW * look_bytes),
        look_call_us=one.cpu_us - look,
        look_us=look,
        look_bytes=look_bytes,
        dense_us=max(0.0, spread.server.cpu_us - full.server.cpu_us),
        # What the other costs do not explain, on servers that sleep between the jobs.
        primary_us=max(0.0, apart.us - plain.us - job_us - looks) / (len(ends) - 1),
        home_us=max(0.0, apart.us * _home_part(ends) - job_us),
    )


def _cluster(target: Target, put: Put, full: Runs, sizes: Sizes) -> tuple[list[float], Sparse]:
    """A sparse job in a Cluster, and the processor time of each primary for all of them."""
    pids = [places.pid_of(port) for port in target.ports]
    before = [cpu_us(pid) for pid in pids]
    found = sparse(target, put, full, sizes.sparse, MANY)
    return [cpu_us(pid) - then for pid, then in zip(pids, before, strict=True)], found


def _home_part(used: Sequence[float]) -> float:
    """The part of all processor time that the queue's home has besides that of its partitions."""
    queue, primaries = sparse_queue(MANY), len(used)
    home = places.home(queue, primaries)
    share, part = places.shares(queue, MANY, primaries)[home], used[home] / sum(used)
    return max(0.0, part - share) / (1 - share)


def _look(target: Target, producer: Process, n: int, width: int) -> Sample:
    producer.ask("peek", n=n, width=width)
    return cost(target, lambda: producer.ask("run")).per(n)


def server(sizes: Sizes) -> ServerCosts:
    """A jq-server in front of Valkey."""
    with places.jq_server() as target:
        memory = float(resident(target.pid))
        quiet = idle(target)
        with started(Settings(url=target.url)) as producer:
            took = producer.ask("exchange", n=sizes.exchanges, batch=10)["ms"]
            put = puts(target, producer, sizes)
            many = dense(target, producer, "load", sizes.single + sizes.batched + 1)
            with started(Settings(url=target.url, queue="big")) as other:
                large = dense(target, other, "big", sizes.big + 1, result=BIG)
            few = sparse(target, put, many, sizes.sparse)
            warm = min(few.us, cycle(target, put, sizes))
        size = (BIG - PAYLOAD + BIG - RESULT) / 1024
        run_kb = (large.server.cpu_us - many.server.cpu_us) / size
    return ServerCosts(
        put_call_us=put.call.cpu_us,
        put_job_us=put.job.cpu_us,
        sparse_us=warm,
        cold_us=max(0.0, few.us - warm),
        dense_us=many.server.cpu_us,
        kb_us=max(0.0, (put.kb_us + 2 * run_kb) / 3),
        put_bytes=put.call.bytes + put.job.bytes,
        sparse_bytes=few.bytes,
        dense_bytes=many.server.bytes - PAYLOAD - FRAME - RESULT,
        exchange_ms=took,
        idle_us=quiet.cpu_us,
        memory=memory,
    )


def sqlite(sizes: Sizes) -> StoreCosts:
    """The processor time of calls to a SQLite file, in the process that makes them."""
    with places.sqlite() as (url, file), started(Settings(url=url)) as producer:
        alone = producer.ask("store_put", n=sizes.single, batch=1)["cpu_us"] / sizes.single
        hundred = producer.ask("store_put", n=sizes.batched, batch=100)["cpu_us"] / sizes.batched
        large = producer.ask("store_put", n=sizes.big, batch=100, payload=BIG)["cpu_us"] / sizes.big
        single = producer.ask("exchange", n=sizes.exchanges, batch=1)
        many = producer.ask("exchange", n=sizes.exchanges, batch=100)
        big = producer.ask("exchange", n=sizes.exchanges // 5, batch=100, payload=BIG)
        took = producer.ask("exchange", n=sizes.exchanges, batch=10)["ms"]
    with places.sqlite() as (url, file):
        with started(Settings(url=url)) as producer:
            producer.ask("put", n=sizes.batched, batch=100)
        waiting = file.bytes_used() / sizes.batched
        with started(Settings(url=url, workers=1)) as worker:
            worker.ask("until", n=sizes.batched + 1)
        ended = file.bytes_used() / sizes.batched
    call = (alone - hundred) / 0.99
    one, dense_us = single["cpu_us"] / sizes.exchanges, many["cpu_us"] / sizes.exchanges / 100
    run_kb = (big["cpu_us"] / (sizes.exchanges // 5) / 100 - dense_us) / ((BIG - PAYLOAD) / 1024)
    return StoreCosts(
        put_call_us=call,
        put_job_us=alone - call,
        put_kb_us=max(0.0, (large - hundred) / ((BIG - PAYLOAD) / 1024)),
        put_call_bytes=0.0,
        put_job_bytes=0.0,
        sparse_us=3 * one,
        cold_us=0.0,
        sparse_bytes=0.0,
        dense_us=dense_us,
        dense_bytes=0.0,
        run_kb_us=max(0.0, run_kb),
        exchange_ms=took,
        renewal_us=dense_us / 2,
        idle_us=one,
        idle_bytes=0.0,
        tick_us=one,
        schedules_us=one / 2,
        event_us=2.0,
        waiting_bytes=waiting - PAYLOAD - FRAME,
        ended_bytes=max(0.0, ended - PAYLOAD - FRAME - RESULT),
        event_bytes=40.0,
        connections=1.0,
        connection_bytes=0.0,
    )
