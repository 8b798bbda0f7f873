"""Alerts and the Grafana board: they are valid, and name metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from jobq import prometheus
from jobq.api.queue import Queue
from jobq.prometheus import Metrics
from jobq.relay.status import QueueStatus, RelayStatus
from jobq.rpc.v1 import jobs_pb2, workers_pb2
from jobq.server.metrics import ServerMetrics
from jobq.stores import open_store
from tests.deploy.files import DEPLOY, KUBERNETES, parsed

RULES = [
    rule for group in parsed(DEPLOY / "prometheus/alerts.yml")["groups"] for rule in group["rules"]
]
BOARD = json.loads((DEPLOY / "grafana/dashboards/jobq.json").read_text())
PROMTOOL = shutil.which("promtool")
WORD = re.compile(r"\bjobq?_[a-z_]+\b")
MADE_BY_PROMETHEUS = {"up"}


async def exported() -> dict[str, set[str]]:
    """The samples that servers and workers export, with the labels of each."""
    async with open_store(f"memory://{uuid4().hex}") as store, Queue("q", store.url) as queue:
        await queue.task_by_name("t").enqueue()
        server, registry = ServerMetrics(store), CollectorRegistry()
        server.relay = lambda: RelayStatus(target="t", queues=(QueueStatus(tenant="a", queue="b"),))
        Metrics(registry)
        gauges = await prometheus.queue_metrics(queue)
        texts = [
            server.text(await server.gauges()).decode(),
            prometheus.rendered(gauges, registry).decode(),
        ]
        families = [
            *server.registry.collect(),
            *registry.collect(),
            *gauges,
            *(each for text in texts for each in text_string_to_metric_families(text)),
        ]
        names = _label_names(server.registry) | _label_names(registry)
    found: dict[str, set[str]] = {}
    for family in families:
        for suffix in _SUFFIXES[family.type]:
            labels = set(names.get(family.name, ()))
            labels |= {key for sample in family.samples for key in sample.labels}
            found.setdefault(family.name + suffix, set()).update(labels)
    return found


_SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
    "gauge": ("",),
    "unknown": ("",),
}


def _label_names(registry: CollectorRegistry) -> dict[str, tuple[str, ...]]:
    """The labels of each family, also of those that have no samples yet."""
    return {
        collector._name: collector._labelnames  # type: ignore[attr-defined]
        for collector in registry._collector_to_names
    }


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression in deploy/, and where it is."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in BOARD["templating"]["list"][1:]:
        yield variable["name"], variable["query"]["query"]
    scaled = parsed(KUBERNETES / "autoscaling/scaledobject.yaml")
    yield "KEDA", scaled["spec"]["triggers"][0]["metadata"]["query"]


async def test_every_metric_that_is_named_is_exported_with_these_labels() -> None:
    known = await exported()
    assert "job_queue_depth" in known
    for where, expression in expressions():
        named = set(WORD.findall(re.sub(r'"[^"]*"', '""', expression)))
        assert named or MADE_BY_PROMETHEUS & set(expression.split("{")), where
        for name in named:
            assert name in known, f"{where}: nothing exports {name}"
        for name, selector in re.findall(r"\b(jobq?_[a-z_]+)\{([^}]*)\}", expression):
            labels = set(re.findall(r"(\w+)\s*[=!]~?", re.sub(r'"[^"]*"', "", selector)))
            unknown = labels - known[name] - {"le"}
            assert not unknown, f"{where}: {name} has no label {unknown}"


def test_methods_that_alerts_name_exist() -> None:
    services = [
        *jobs_pb2.DESCRIPTOR.services_by_name.values(),
        *workers_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    methods = {method.name for service in services for method in service.methods}
    (named,) = (
        re.findall(r"\(([A-Za-z|]+)\)\"", rule["expr"])
        for rule in RULES
        if rule["alert"] == "JobqCallsSlow"
    )
    assert set(named[0].split("|")) <= methods


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "command",
    ["check rules alerts.yml", "test rules alerts_test.yml", "check config prometheus.yml"],
)
def test_promtool_accepts_the_rules_and_their_tests(command: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *command.split()],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_that_sees_it_fire() -> None:
    tests = parsed(DEPLOY / "prometheus/alerts_test.yml")["tests"]
    fired = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in RULES}


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]


def test_panels_of_the_board_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
