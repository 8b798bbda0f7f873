"""The application behind a jq-server: two workers over gRPC, one of them killed, and jq-ctl."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from rich.text import Text
from screen import console, say
from shop import FOLDER

JOBS = 600
READY_S = 30.0
"""Seconds until the server must listen, and until all jobs must have ended."""


def run() -> bool:
    """Show it. True if every job completed, or if gRPC is not installed."""
    if find_spec("grpc") is None:
        say("the part with jq-server needs gRPC: pip install 'jobq[server]'")
        return True
    console.rule("[bold]over the network")
    address = f"127.0.0.1:{free_port()}"
    processes = [start_server(address)]
    try:
        wait_until_listening(address, processes[0])
        say(f"jq-server listens on {address} and keeps its jobs in a SQLite file")
        processes += [start_worker(name, address) for name in ("near", "far")]
        return play(address, *processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def play(address: str, server: Process, near: Process, far: Process) -> bool:
    """Submit jobs with jq-ctl, kill a worker, and count what has ended."""
    ctl(address, "queue", "create", "shop", "--max-retries", "5", "--update", shown=False)
    lines = "".join(f"[{n}, 640]\n" for n in range(JOBS))
    ctl(address, "job", "submit", "resize", "-q", "shop", "--lines", "-", input=lines)
    ctl(address, "job", "wait", submit_one(address), "--for", "30s", shown=False)
    near.kill()
    say("one of its two workers was killed (kill -9)")
    end = time.monotonic() + READY_S
    while (counts := completed(address)) < JOBS + 1 and time.monotonic() < end:
        time.sleep(0.3)
    ctl(address, "worker", "list")
    ctl(address, "status")
    far.send_signal(signal.SIGTERM)
    worker_code = far.wait(30)
    server.send_signal(signal.SIGTERM)
    codes = (worker_code, server.wait(30))
    say(f"worker and server got SIGTERM and left with exit codes {codes[0]} and {codes[1]}")
    say(f"{counts:,} of {JOBS + 1:,} jobs completed through jq-server", "bold")
    return counts == JOBS + 1 and codes == (0, 0)


def submit_one(address: str) -> str:
    """A job in front of the others; its id."""
    ctl(
        address, "job", "submit", "resize", "-q", "shop", "--id", "first", "--priority", "9",
        "--payload", "[1, 64]", shown=False,
    )  # fmt: skip
    return "first"


def completed(address: str) -> int:
    """How many jobs have completed."""
    (queue,) = json.loads(ctl(address, "queue", "list", "-o", "json", shown=False))
    return int(queue["counts"]["completed"])


def ctl(address: str, *args: str, input: str | None = None, shown: bool = True) -> str:
    """Run jq-ctl, and show its command line and output."""
    done = subprocess.run(
        [sys.executable, "-m", "jobq.cli.ctl", "--server-addr", address, *args],
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise SystemExit(f"jq-ctl {' '.join(args)} failed: {done.stderr}")
    if shown:
        command = f"$ jq-ctl --server-addr {address} {' '.join(args)}"
        console.print(Text(command, style="bright_black"), soft_wrap=True)
        console.print(Text(done.stdout.rstrip()), soft_wrap=True)
    return done.stdout


Process = subprocess.Popen[bytes]


def start_server(address: str) -> Process:
    """Start a jq-server on a SQLite file of its own."""
    for old in FOLDER.glob("server.db*"):
        old.unlink()
    port = address.rpartition(":")[2]
    return start(
        "server", "jobq.cli.server", "--url", f"sqlite:///{FOLDER}/server.db", "--grpc-port", port,
        "--metrics-port", str(free_port()), "--health-port", str(free_port()),
    )  # fmt: skip


def start_worker(name: str, address: str) -> Process:
    """Start a worker of the server."""
    return start(
        name, "jobq.cli.worker", "--app", "shop:shop", "--server-addr", address, "--name", name,
        "--concurrency", "20", "--lease", "2s", "--metrics-port", "0", "--health-port", "0",
    )  # fmt: skip


def start(name: str, module: str, *args: str) -> Process:
    """Start a program of jobq, with a log in the demo's folder."""
    with open(FOLDER / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=Path(__file__).parent,
            env={**os.environ, "DEMO_DIR": str(FOLDER)},
            stdout=log,
            stderr=log,
        )


def wait_until_listening(address: str, server: Process) -> None:
    """Wait until the server accepts connections."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit((FOLDER / "server.log").read_text()) from None
            time.sleep(0.1)


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
