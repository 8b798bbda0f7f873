"""The metrics of `jq-pipeline run`, as Prometheus reads them."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from jobq.console.probes import Probes
from jobq.pipeline.cli import main
from jobq.pipeline.jobs.run import PipelineRun
from jobq.pipeline.lake import Lake
from jobq.pipeline.metrics import RunMetrics, routes
from jobq.pipeline.sources import open_source
from tests.pipeline.conftest import History


def read(text: str) -> dict[str, float]:
    """The samples by name, with the labels of those that have some."""
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "_bucket" not in sample.name
    }


def test_a_run_reports_its_batches_over_http(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    lines = [json.dumps(line) for line in History().life("a", at=10, wait=1, run=2).lines]
    (tmp_path / "events" / "1.jsonl").write_text("\n".join([*lines, "nonsense", lines[0], ""]))
    lake = Lake(spark, str(tmp_path / "lake"))
    lake.files.write(f"{lake.root}/_jobq/audit.json", '{"verdict": "violated", "at_ms": 5000}')
    # 100 seconds after the last event
    metrics = RunMetrics(now=lambda: History.START / 1000 + 113)
    source = open_source(f"files://{tmp_path}/events", max_events=None, max_files=None)
    job = PipelineRun(lake, source, (), metrics=metrics)
    with Probes({0: routes(metrics, lambda: job.alive)}, host="127.0.0.1") as probes:
        (address,) = probes.addresses
        url = f"http://127.0.0.1:{address[1]}"
        before = read(urlopen(f"{url}/metrics", timeout=10).read().decode())
        assert before["jobq_pipeline_batch_seconds_count"] == 0
        assert before["jobq_pipeline_freshness_seconds"] == 0
        assert urlopen(f"{url}/healthz", timeout=10).status == 200
        job.start(spark, once=True)
        job.wait()
        found = read(urlopen(f"{url}/metrics", timeout=10).read().decode())
        with pytest.raises(OSError, match="503"):
            urlopen(f"{url}/healthz", timeout=10)
    assert found["jobq_pipeline_events_total"] == 3
    assert found["jobq_pipeline_duplicates_total"] == 1
    assert found["jobq_pipeline_quarantined_total"] == 1
    assert found["jobq_pipeline_lag_seconds"] == pytest.approx(100)
    assert found["jobq_pipeline_freshness_seconds"] == pytest.approx(100)
    assert found["jobq_pipeline_batch_seconds_count"] == 1
    assert found["jobq_pipeline_derive_seconds_count"] == 1
    assert found["jobq_pipeline_stale_hours"] == 0
    assert found["jobq_pipeline_audit_verdictviolated"] == 1
    assert found["jobq_pipeline_audit_verdictproved"] == 0
    assert found["jobq_pipeline_audit_timestamp_seconds"] == 5


def test_the_guide_names_every_metric() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "pipeline.md").read_text()
    for family in RunMetrics().registry.collect():
        assert family.name.removeprefix("jobq_pipeline") in guide, family.name


def test_a_port_in_use_is_an_error_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["run", "--lake", str(tmp_path / "lake"), "--source", f"files://{tmp_path}/events"]
        words += ["--metrics-port", str(port), "--probe-host", "127.0.0.1"]
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert f"cannot serve /metrics, /healthz on port {port}" in done.output
    assert not (tmp_path / "lake").exists()
