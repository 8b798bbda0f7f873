"""How many single submits does a jq-server take, and how soon do their jobs start?

    python -m bench.submits

A light client, written in Go, keeps 50 calls of JobService.Submit in flight against a server
process on SQLite. Then it sends at half that rate, while a worker in a third process runs the jobs
over grpc://. Exit code 1 if a bound is missed. Without Go there is nothing to measure with.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.roster import ROOT
from jobq.cli.app import run_in_loop

CLIENT = ROOT / "bench" / "peers" / "submits"
QUEUE = "submits"
IN_FLIGHT = 50
SUBMITS = 4_000
"""Submits per second that one server process has to take, client and server on two cores."""
START_MS = 50.0
"""The 99th percentile from submit to start at half that load, in milliseconds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve or options.work:
        run_in_loop(_serve(options.serve) if options.serve else _work(options.work))
        return 0
    if shutil.which("go") is None:
        print("go is not installed: nothing measured")
        return 0
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        client = Path(folder, "submits")
        subprocess.run(["go", "build", "-o", client, "."], cwd=CLIENT, check=True)
        rate, p50, p99 = submits(client, f"sqlite:///{folder}/fast.db", options.seconds)
        print(f"{rate:,.0f} submits/s at {IN_FLIGHT} in flight, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        wait_ms = starts(client, f"sqlite:///{folder}/half.db", options.seconds, rate / 2)
        print(f"p99 from submit to start {wait_ms:.0f} ms at {rate / 2:,.0f} submits/s")
    return 0 if rate >= SUBMITS and wait_ms <= START_MS else 1


def submits(client: Path, url: str, seconds: float) -> tuple[float, float, float]:
    """Submits per second, and the 50th and 99th percentile of a call in milliseconds."""
    with _process("--serve", url) as port:
        return _client(client, port, seconds, 0)


def starts(client: Path, url: str, seconds: float, rate: float) -> float:
    """The 99th percentile from submit to start in milliseconds, by the clock of the store."""
    with _process("--serve", url) as port, _process("--work", f"grpc://127.0.0.1:{port}"):
        _client(client, port, seconds, rate)
        waits = asyncio.run(_waits(url))
    return float(waits[len(waits) * 99 // 100])


def _client(client: Path, port: str, seconds: float, rate: float) -> tuple[float, float, float]:
    from jobq.rpc.v1 import common_pb2, jobs_pb2

    new = common_pb2.NewJob(queue=QUEUE, name="nothing", payload=b'[["acme"],{}]')
    request = jobs_pb2.SubmitRequest(job=new).SerializeToString().hex()
    command = [str(client), f"127.0.0.1:{port}", str(IN_FLIGHT), str(seconds), str(rate), request]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    calls, p50, p99 = map(float, done.stdout.split())
    return calls, p50, p99


async def _waits(url: str) -> list[int]:
    from jobq.core.records.jobs import Filter, QueueName
    from jobq.core.records.states import State
    from jobq.stores import open_store

    waits: list[int] = []
    async with open_store(url) as store:
        cursor = None
        filter = Filter(queue=QueueName("default", QUEUE), state=State.COMPLETED)
        while True:
            page = await store.find(filter, cursor=cursor, limit=1000)
            waits += [
                record.started_ms - record.created_ms
                for record in page.records
                if record.started_ms is not None
            ]
            if (cursor := page.cursor) is None:
                return sorted(waits)


# ── the other processes ───────────────────────────────────────────────────────────────────────────


@contextmanager
def _process(role: str, url: str) -> Iterator[str]:
    """A process of this module. Yields the line that it prints when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.submits", role, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=60)  # closes its standard input, which ends it


async def _serve(url: str) -> None:
    from jobq.server.config import ServerSettings
    from jobq.server.context import ServerContext
    from jobq.server.host import SERVICES, Host
    from jobq.stores import open_store

    async with open_store(url) as store:
        host = Host(ServerContext(store, ServerSettings(grpc_port=0)), SERVICES)
        async with host:
            print(host.port, flush=True)
            await _until_closed()


async def _work(url: str) -> None:
    from jobq import Queue, Worker

    async with Queue(QUEUE, url) as queue:

        @queue.task(name="nothing")
        async def nothing(customer: str) -> None:
            pass

        worker = asyncio.create_task(Worker(queue, concurrency=100).run())
        print("ready", flush=True)
        await _until_closed()
        worker.cancel()
        await asyncio.wait([worker])


async def _until_closed() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    sys.exit(main())
