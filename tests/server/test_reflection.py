"""What grpcurl and load balancers need: the server describes itself, and says that it serves."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from jobq.errors import StoreUnavailable
from jobq.server.config import ServerSettings
from tests.server.serving import PATIENCE_S, RunningServer, running

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


@pytest.mark.parametrize("way", ["unavailable", "unexpected", "silent"])
def test_health_follows_readyz_both_ways(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch reports every change of every service, without anybody asking for /readyz."""

    async def fails(*args: object, **options: object) -> bool:
        if way == "silent":
            await asyncio.Event().wait()
        raise (StoreUnavailable if way == "unavailable" else OSError)("valkey://10.9.8.7 is gone")

    with running(settings=ServerSettings(grpc_port=0, upkeep=False)) as server:
        readyz = server.host.readiness.route(server.loop)
        stub = health_pb2_grpc.HealthStub(server.channel)
        watches = [
            stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
            for service in ("", *SERVICES)
        ]

        def all_say(status: str) -> bool:
            wanted = health_pb2.HealthCheckResponse.ServingStatus.Value(status)
            return all(next(watch).status == wanted for watch in watches)

        assert all_say("SERVING")
        for _ in range(2):
            assert readyz().status == 200
            with monkeypatch.context() as patch:
                patch.setattr(server.context.store, "lead", fails)
                assert all_say("NOT_SERVING")
                found = readyz()
                assert found.status == 503
                assert b"10.9.8.7" not in found.body
            assert all_say("SERVING")
        for watch in watches:
            watch.cancel()


def test_an_outage_is_logged_once_and_its_end_too(
    running_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    readiness = running_server.host.readiness

    async def fails(*args: object, **options: object) -> bool:
        raise StoreUnavailable("valkey://10.9.8.7 is gone")

    with caplog.at_level(logging.INFO, "jobq"):
        with monkeypatch.context() as patch:
            patch.setattr(running_server.context.store, "lead", fails)
            for _ in range(20):
                assert running_server.do(readiness.check()) is not None
        assert running_server.do(readiness.check()) is None
    about = [r.getMessage() for r in caplog.records if "not ready" in r.getMessage()]
    assert len(about) == 2
    assert "10.9.8.7 is gone" in about[0]
    assert "works again" in about[1]


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
