"""`run`, `compact` and the audit over Spark Connect: a server from the wheel, and a client.

`make test-iceberg` runs it, in an environment that has the client's packages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.pipeline import synthetic
from scripts.ports import free_port
from tests.waiting import wait_until

pyspark = pytest.importorskip("pyspark")
pytest.importorskip("grpc_status", reason="needs the client: pip install 'jobq[connect]'")
pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("JQ_")},
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(SPARK),
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a Spark Connect server."""
    port = free_port()
    output = tmp_path / "server.txt"
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    }
    command = [
        str(SPARK / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2]"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=file, stderr=file, cwd=tmp_path)

    def listens() -> bool:
        assert process.poll() is None, output.read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, f"the Connect server to listen (see {output})", seconds=300)
    yield f"sc://127.0.0.1:{port}"
    process.terminate()
    process.wait(60)


def test_events_become_a_lake_that_the_audit_can_judge(server: str, tmp_path: Path) -> None:
    plan = synthetic.Plan(jobs=30, hours=1)
    count = synthetic.write(plan, tmp_path / "events", files=1, processes=1)

    def pipeline(*words: str) -> str:
        command = [sys.executable, "-m", "jobq.pipeline", *words]
        command += ["--lake", str(tmp_path / "lake"), "--master", server]
        done = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, cwd=tmp_path
        )
        assert done.returncode in (0, 2), (done.stdout + done.stderr)[-4000:]
        return done.stdout

    source = ("--source", str(tmp_path / "events"))
    assert f"{count:,} new events" in pipeline("run", *source, "--once")
    assert "0 new events" in pipeline("run", *source, "--once"), "a run continues where it stopped"
    assert "verdict: " in pipeline("audit")
    pipeline("compact")
