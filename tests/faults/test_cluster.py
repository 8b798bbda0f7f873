"""The commands on a standalone cluster: a master and two workers on this machine.

A fault test, because six JVMs take most of a minute of both cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from jobq.pipeline import synthetic
from scripts.ports import free_port
from tests.pipeline import quick
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
SPARK = Path(pyspark.__file__).parent
ENVIRONMENT = {
    **os.environ,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(SPARK),
    "PYSPARK_PYTHON": sys.executable,
    "JQ_SPARK_JARS": "",
    "SPARK_DAEMON_MEMORY": "256m",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a master that has two workers with one core each."""
    port, page = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    master = [
        "master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        str(page),
    ]
    worker = [
        "worker.Worker",
        "--host",
        "127.0.0.1",
        "--cores",
        "1",
        "--memory",
        "1g",
        "--webui-port",
        "0",
        address,
    ]
    output = (tmp_path / "cluster.txt").open("wb")
    processes = []
    for n, (kind, *args) in enumerate((master, worker, worker)):
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *args]
        if "worker" in kind:
            command[2:2] = ["--work-dir", str(tmp_path / f"work-{n}")]
        processes.append(subprocess.Popen(command, env=ENVIRONMENT, stdout=output, stderr=output))
    log = tmp_path / "cluster.txt"
    wait_until(
        lambda: log.read_text().count("Successfully registered with master") == 2,
        f"two Spark workers to register (see {log})",
        seconds=60,
    )
    yield address
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)
    output.close()


def test_run_and_audit_on_two_workers(cluster: str, tmp_path: Path) -> None:
    count = synthetic.write(
        synthetic.Plan(jobs=300, hours=1), tmp_path / "events", files=2, processes=1
    )
    small = quick.options(
        spark_executor_memory="512m",
        spark_driver_memory="512m",
        spark_sql_shuffle_partitions="2",
        spark_executor_extraJavaOptions=quick.JVM,
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jobq.pipeline",
            "run",
            "--source",
            str(tmp_path / "events"),
            "--lake",
            str(tmp_path / "lake"),
            "--once",
            "--audit",
            "--master",
            cluster,
            *small,
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{count:,} new events" in done.stdout
    assert "verdict: proved" in done.stdout
    assert (tmp_path / "work-1").exists()
    assert (tmp_path / "work-2").exists()
