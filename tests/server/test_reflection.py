"""What grpcurl and load balancers need: the server describes itself, and says that it serves."""

from __future__ import annotations

import json
import shutil
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.server.serving import PATIENCE_S, RunningServer

SERVICES = ["jobq.v1.AdminService", "jobq.v1.JobService", "jobq.v1.WorkerService"]


def test_the_server_lists_and_describes_its_services(running_server: RunningServer) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(running_server.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="jobq.v1.JobService"),
    ]
    listed, described = stub.ServerReflectionInfo(iter(asked), timeout=PATIENCE_S)
    names = [service.name for service in listed.list_services_response.service]
    assert set(SERVICES) <= set(names)
    assert len(names) == len(set(names)), "a service is listed twice"
    assert described.file_descriptor_response.file_descriptor_proto


@pytest.mark.parametrize("service", ["", *SERVICES])
def test_every_service_says_that_it_serves(running_server: RunningServer, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(running_server.channel)
    reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_a_service_that_does_not_exist_is_unimplemented(running_server: RunningServer) -> None:
    call = running_server.channel.unary_unary("/jobq.v1.JobService/Sumbit", bytes, bytes)
    with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
        call(b"", timeout=PATIENCE_S)


@pytest.mark.skipif(shutil.which("grpcurl") is None, reason="grpcurl is not installed")
def test_grpcurl_submits_and_reads_a_job(running_server: RunningServer) -> None:
    def grpcurl(method: str, request: object) -> dict[str, object]:
        command = ["grpcurl", "-plaintext", "-d", json.dumps(request), running_server.address]
        done = subprocess.run(
            [*command, f"jobq.v1.JobService/{method}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        reply: dict[str, object] = json.loads(done.stdout)
        return reply

    new = {"queue": "billing", "name": "charge", "id": "invoice-7"}
    assert grpcurl("Submit", {"job": new}) == {"id": "invoice-7", "state": "waiting"}
    assert grpcurl("Submit", {"job": new})["duplicate"] is True
    found = grpcurl("Get", {"queue": "billing", "id": "invoice-7"})["job"]
    assert isinstance(found, dict)
    assert (found["state"], found["name"]) == ("waiting", "charge")
