"""Starting and stopping a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobq.core.records.jobs import JobSpec, QueueName
from jobq.errors import ConfigError
from jobq.relay.relay import Relay
from jobq.relay.targets import open_target
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.host import Host
from jobq.server.run import StoredRejects
from jobq.stores import open_store
from tests.waiting import PATIENCE_S, until


async def test_a_server_says_that_it_serves() -> None:
    async with open_store("memory://host") as store:
        context = ServerContext(store, ServerSettings(grpc_port=0))
        async with (
            Host(context, []) as host,
            grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel,
        ):
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=10
            )
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_port_in_use_is_an_error_in_words() -> None:
    async with (
        open_store("memory://host-in-use") as store,
        Host(ServerContext(store, ServerSettings(grpc_port=0)), []) as host,
    ):
        second = Host(ServerContext(store, ServerSettings(grpc_port=host.port)), [])
        with pytest.raises(ConfigError, match="is the port in use"):
            await second.start()


async def test_a_watch_of_the_health_ends_when_the_server_stops() -> None:
    async with open_store("memory://host-watched") as store:
        host = Host(ServerContext(store, ServerSettings(grpc_port=0)), [])
        await host.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{host.port}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            async with asyncio.timeout(PATIENCE_S):
                await host.stop(grace_s=10 * PATIENCE_S)


async def test_the_relay_ships_events_while_the_server_runs_and_ends_with_it(
    tmp_path: Path,
) -> None:
    queue = QueueName("acme", "mail")
    async with open_store("memory://host-relay") as store:
        relay = Relay(
            store, open_target(f"files://{tmp_path}"), poll=0.01, rejected=StoredRejects(store)
        )
        context = ServerContext(store, ServerSettings(grpc_port=0))
        async with Host(context, [], relay=relay):
            await store.put([JobSpec(queue=queue, id="1", name="send", payload=b"[[],{}]")])
            await until(
                lambda: any(each.shipped for each in relay.status.queues), "the event to be shipped"
            )
        shipped = sum(each.shipped for each in relay.status.queues)
        await store.put([JobSpec(queue=queue, id="2", name="send", payload=b"[[],{}]")])
        assert sum(each.shipped for each in relay.status.queues) == shipped
        position = await store.ack_events(queue, "relay", None)
        assert position not in (None, "0"), "the relay has acknowledged what it shipped"
