"""jq-worker --metrics-port and --health-port, with one process and under a supervisor."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobq.cli.probes import SharedMetrics
from tests import waiting
from tests.cli.fleet import Output, wait_for_workers
from tests.cli.kit import Ctl
from tests.telemetry.http import get

Start = Callable[..., "subprocess.Popen[str]"]


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def reply(port: int, path: str) -> tuple[int, str] | None:
    """The reply, or None while nobody listens."""
    try:
        return get(port, path)
    except OSError:
        return None


def until_ready(port: int) -> None:
    waiting.wait_until(lambda: reply(port, "/readyz") == (200, "ok\n"), "the worker to be ready")


def samples(port: int, name: str, *, zeros: bool = True) -> dict[tuple[str, ...], float]:
    """The samples of a metric, by its task or state, and its outcome."""
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        tuple(
            filter(None, (s.labels.get("task"), s.labels.get("state"), s.labels.get("outcome")))
        ): (s.value)
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == name and (zeros or s.value)
    }


def run_jobs(ctl: Ctl, task: str, count: int, code: int = 0) -> None:
    for n in range(count):
        ctl("job", "submit", task, "-q", "shop", "--id", f"{task}{n}", "--payload", PAYLOADS[task])
    ctl("job", "wait", *(f"{task}{n}" for n in range(count)), "--for", "30s", code=code)


def stop(process: subprocess.Popen[str], output: Output) -> None:
    """Stop in an orderly way."""
    process.send_signal(signal.SIGTERM)
    code, text = output.end()
    assert code == 0, text


PAYLOADS = {"add": "[1, 2]", "boom": "[]"}


def test_one_port_serves_health_and_metrics(ctl: Ctl, start_worker: Start) -> None:
    port = free_port()
    worker = start_worker(
        f"--health-port={port}", "--probe-host=127.0.0.1", JQ_METRICS_PORT=str(port)
    )
    output = Output(worker)
    until_ready(port)
    assert get(port, "/healthz") == (200, "ok\n")
    run_jobs(ctl, "add", 2)
    run_jobs(ctl, "boom", 1, code=1)
    assert samples(port, "jobq_runs_total", zeros=False) == {
        ("add", "completed"): 2,
        ("boom", "failed"): 1,
    }
    assert samples(port, "jobq_queue_jobs").items() >= {("completed",): 2, ("failed",): 1}.items()
    assert samples(port, "jobq_run_seconds_count")[("add",)] == 2
    stop(worker, output)
    assert reply(port, "/healthz") is None


def test_a_worker_that_drains_is_healthy_and_not_ready(
    ctl: Ctl, start_worker: Start, tmp_path: Path
) -> None:
    port = free_port()
    worker = start_worker(f"--health-port={port}", "--probe-host=127.0.0.1", "--name=w")
    output = Output(worker)
    until_ready(port)
    ctl("worker", "drain", "w")
    waiting.wait_until(
        lambda: reply(port, "/readyz") == (503, "the worker is paused\n"), "the worker to pause"
    )
    ctl("worker", "resume", "w")
    until_ready(port)
    ctl("job", "submit", "hold", "-q", "shop", "--id", "h", "--payload", f'["{tmp_path}"]')
    waiting.wait_until((tmp_path / "h.started").exists, "the job to run")
    worker.send_signal(signal.SIGTERM)
    waiting.wait_until(
        lambda: reply(port, "/readyz") == (503, "the worker stops\n"), "the worker to stop"
    )
    assert get(port, "/healthz") == (200, "ok\n")
    (tmp_path / "go").touch()
    assert output.end()[0] == 0


def test_a_worker_without_a_store_is_healthy_and_not_ready(start_worker: Start) -> None:
    port = free_port()
    start_worker(f"--health-port={port}", "--url", "valkey://127.0.0.1:1")
    waiting.wait_until(lambda: reply(port, "/healthz") == (200, "ok\n"), "the worker to listen")
    assert get(port, "/readyz") == (503, "the worker waits for its store\n")


def test_a_supervisor_adds_up_its_processes_also_those_that_ended(
    ctl: Ctl, start_worker: Start
) -> None:
    port = free_port()
    supervisor = start_worker(
        f"--metrics-port={port}", f"--health-port={port}", "--processes=2", "--name=w"
    )
    output = Output(supervisor)
    pids = wait_for_workers(ctl, "w-1", "w-2")
    until_ready(port)
    run_jobs(ctl, "add", 8)
    assert samples(port, "jobq_runs_total", zeros=False) == {("add", "completed"): 8}
    assert samples(port, "jobq_runs_active") == {("add",): 0}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    waiting.wait_until(
        lambda: reply(port, "/readyz") == (503, "0 of 2 worker processes are up\n"), "their end"
    )
    assert get(port, "/healthz") == (200, "ok\n")
    assert samples(port, "jobq_runs_total", zeros=False) == {("add", "completed"): 8}
    until_ready(port)
    run_jobs(ctl, "boom", 1, code=1)
    assert samples(port, "jobq_runs_total", zeros=False) == {
        ("add", "completed"): 8,
        ("boom", "failed"): 1,
    }
    stop(supervisor, output)


COUNTER = """
import sys
from prometheus_client import Counter, Gauge, Histogram
Counter("done", "Done.", ["task"]).labels("a").inc(int(sys.argv[1]))
Histogram("took", "Took.", buckets=[1, 5]).observe(int(sys.argv[1]))
Gauge("busy", "Busy.", multiprocess_mode="livesum").set(1)
print(__import__("os").getpid())
"""


def test_what_ended_processes_have_counted_takes_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with SharedMetrics() as metrics:
        folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        for n in (1, 2, 3):
            command = [sys.executable, "-c", COUNTER, str(n)]
            metrics.ended(int(subprocess.check_output(command, text=True)))
        names = sorted(path.name for path in folder.iterdir())
        text = metrics.rendered()[0].decode()
    assert names == ["counter_0.db", "histogram_0.db"]
    assert 'done_total{task="a"} 6.0' in text
    assert [line for line in text.splitlines() if line.startswith("took_")] == [
        "took_sum 6.0",
        'took_bucket{le="1.0"} 1.0',
        'took_bucket{le="5.0"} 3.0',
        'took_bucket{le="+Inf"} 3.0',
        "took_count 3.0",
    ]
    assert "busy" not in text
    assert not folder.exists()


def test_a_port_that_is_taken_stops_the_start_with_words(start_worker: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = start_worker(f"--health-port={port}", "--probe-host=127.0.0.1")
        output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 2, output
    assert f"cannot serve /healthz, /readyz on port {port} of 127.0.0.1" in output


@pytest.mark.parametrize("more", [(), ("--processes=2",)], ids=["alone", "supervised"])
def test_metrics_without_the_client_are_refused_with_words(
    start_worker: Start, tmp_path: Path, more: tuple[str, ...]
) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('not installed')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    worker = start_worker(f"--metrics-port={free_port()}", *more, PYTHONPATH=path)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 2, output
    assert "pip install 'jobq[prometheus]'" in output
