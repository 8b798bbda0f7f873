"""Containers: what they run, that it exists, and that none of them runs as root."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from jobq.cli.probes import DEFAULT_HEALTH_PORT, DEFAULT_METRICS_PORT
from jobq.cli.worker import main as worker
from jobq.server import config
from tests.deploy.files import DEPLOY, KUBERNETES, objects, parsed

COMPOSE = parsed(DEPLOY / "compose/docker-compose.yml")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
ROOT = Path(__file__).parents[2]
PODS = {
    name: found["spec"]["template"]["spec"]
    for (kind, name), found in objects().items()
    if kind == "Deployment"
}


def seconds(text: str) -> float:
    """`45s` as a number."""
    return float(text.removesuffix("s"))


def drain_of(command: list[str]) -> float:
    """The --drain of a worker's command line. Its options must exist."""
    context = worker.make_context("jq-worker", list(command[1:]), resilient_parsing=False)
    return float(context.params["drain"])


# ── the image ─────────────────────────────────────────────────────────────────────────────────────


def test_the_image_runs_as_a_user_with_a_number_that_is_not_root() -> None:
    users = re.findall(r"^USER (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert users == ["10001:10001"]
    assert {pod["securityContext"]["runAsUser"] for pod in PODS.values()} == {10001}


def test_the_image_is_built_from_files_that_are_there_and_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for line in re.findall(r"^COPY (?!--)(.+)$", DOCKERFILE, flags=re.MULTILINE):
        *sources, _ = shlex.split(line)
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_the_extras_of_the_image_exist() -> None:
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert set(extras.split(",")) <= set(known)


# ── compose ───────────────────────────────────────────────────────────────────────────────────────


def test_compose_runs_all_that_an_installation_needs() -> None:
    assert set(COMPOSE["services"]) == {
        "server",
        "worker",
        "postgres",
        "valkey",
        "kafka",
        "prometheus",
        "grafana",
    }


def test_services_wait_for_services_that_exist_and_can_say_that_they_are_healthy() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            # The image of jobq brings the healthcheck of a server.
            assert "healthcheck" in services[other] or other == "server", (name, other)


def test_volumes_are_declared_or_are_files_that_exist() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "compose" / source).resolve().exists(), source
            else:
                assert source in COMPOSE["volumes"], source


def test_ports_are_published_on_this_machine_only_and_once() -> None:
    ports = [port for each in COMPOSE["services"].values() for port in each.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    published = [port.split(":")[1] for port in ports]
    assert len(set(published)) == len(published)


def test_no_file_contains_a_password() -> None:
    for path in DEPLOY.rglob("*"):
        if path.suffix in (".yml", ".yaml", ".service"):
            for line in path.read_text().splitlines():
                found = re.search(r"(?i)^\s*\S*(password|secret)[:=]\s*([^#\s]\S*)", line)
                assert not found or not found[2].strip("\"'").isalnum(), f"{path.name}: {line}"


def test_containers_have_more_time_to_stop_than_their_programs_take() -> None:
    services = COMPOSE["services"]
    grace = parsed(DEPLOY / "compose/server.yaml")["shutdown_grace_period"]
    assert seconds(services["server"]["stop_grace_period"]) > grace
    worker = services["worker"]
    assert seconds(worker["stop_grace_period"]) > drain_of(worker["command"])


@pytest.mark.parametrize("path", ["compose/server.yaml", "kubernetes/base/config.yaml"])
def test_a_server_accepts_its_configuration_without_a_warning(path: str) -> None:
    loaded = config.load(DEPLOY / path, {"JQ_DB_PASSWORD": "of the environment"})
    assert loaded.warnings == ()
    assert loaded.config.db.host


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PODS)
def test_pods_run_without_privileges(name: str) -> None:
    pod = PODS[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", PODS)
def test_pods_have_probes_on_ports_that_they_open_and_a_budget(name: str) -> None:
    (container,) = PODS[name]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert {"health", "metrics"} <= ports
    budget = objects()["PodDisruptionBudget", name]
    labels = objects()["Deployment", name]["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"] == labels


def port_of(name: str, port: str) -> int:
    (container,) = PODS[name]["containers"]
    return int({each["name"]: each["containerPort"] for each in container["ports"]}[port])


def test_ports_are_those_of_the_programs() -> None:
    assert port_of("jobq-worker", "metrics") == DEFAULT_METRICS_PORT
    assert port_of("jobq-worker", "health") == DEFAULT_HEALTH_PORT
    given = parsed(KUBERNETES / "base/config.yaml")
    assert port_of("jobq-server", "grpc") == given["grpc"]["port"]
    assert port_of("jobq-server", "metrics") == given["metrics"]["port"]
    assert port_of("jobq-server", "health") == given["health"]["port"]


def test_pods_have_more_time_to_stop_than_their_programs_take() -> None:
    given = parsed(KUBERNETES / "base/config.yaml")
    assert PODS["jobq-server"]["terminationGracePeriodSeconds"] > given["shutdown_grace_period"]
    pod = PODS["jobq-worker"]
    assert pod["terminationGracePeriodSeconds"] > drain_of(pod["containers"][0]["args"])


def test_workers_are_scaled_by_waiting_and_active_jobs() -> None:
    """By waiting jobs alone, workers would be stopped while all of them are busy."""
    scaled: Any = objects("autoscaling")["ScaledObject", "jobq-worker"]
    assert scaled["spec"]["scaleTargetRef"]["name"] in PODS
    assert 'state=~"waiting|active"' in scaled["spec"]["triggers"][0]["metadata"]["query"]


def test_the_resources_of_a_kustomization_exist() -> None:
    for path in KUBERNETES.glob("*/kustomization.yaml"):
        for resource in parsed(path)["resources"]:
            assert (path.parent / resource).exists(), resource
