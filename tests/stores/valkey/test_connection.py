"""Servers that restart, freeze or drop connections: calls fail in time, later ones work again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq import Job, Queue
from jobq.core.records.jobs import Claim, JobKey, LeaseRef, Note, QueueName, Signal, Topic
from jobq.errors import PayloadTooLarge, StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.valkey import keys, listener
from tests.stores.valkey import servers
from tests.stores.valkey.jobs import done, exchange, spec, take
from tests.stores.valkey.servers import Server, blocked_clients
from tests.waiting import until, until_it_succeeds, wait_until


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test. Its data survives a restart."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with servers.running(servers.valkey_binary(), tmp_path, *options) as server:
        yield server


async def until_it_works(store: Store, queue: QueueName, id: str) -> None:
    """Repeat a call until it works, for 5 s at most."""
    await until_it_succeeds(
        lambda: store.put([spec(queue, id)]), StoreUnavailable, "the store to take jobs", seconds=5
    )


async def test_after_a_restart_calls_work_again_and_nothing_acknowledged_is_lost(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, f"j{n}") for n in range(50)])
        own_server.kill()
        with pytest.raises(StoreUnavailable):
            await store.put([spec(queue, "lost")])
        own_server.start()
        await until_it_works(store, queue, "late")
        ids = [lease.id for lease in await take(store, queue, 100)]
        assert ids == [*(f"j{n}" for n in range(50)), "late"]


async def test_a_sleeping_worker_returns_when_its_server_is_gone(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        assert await take(store, queue) == []
        sleeping = asyncio.create_task(
            store.sleep([queue], worker="w1", slots=1, timeout_ms=60_000)
        )
        await until(lambda: blocked_clients(own_server), "the worker to sleep at the server")
        own_server.kill()
        with pytest.raises(StoreUnavailable):
            async with asyncio.timeout(5):
                await sleeping
        own_server.start()
        await until_it_works(store, queue, "a")
        assert [lease.id for lease in await take(store, queue)] == ["a"]


async def test_a_server_that_stops_answering_is_noticed(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(f"{own_server.url}?timeout=0.5") as store:
        await store.put([spec(queue, "a")])
        own_server.freeze()
        with pytest.raises(StoreUnavailable, match="unknown"):
            async with asyncio.timeout(5):
                await store.put([spec(queue, "b")])
        own_server.thaw()
        await until_it_works(store, queue, "c")


async def test_closed_connections_are_opened_again(own_server: Server, queue: QueueName) -> None:
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        own_server.tell("CLIENT", "KILL", "TYPE", "normal")
        await until_it_works(store, queue, "b")
        assert [lease.id for lease in await take(store, queue, 5)] == ["a", "b"]


async def test_listeners_receive_signals_after_their_connection_was_closed(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        async with store.listen([Topic("ended", queue, "a")]) as signals:
            own_server.tell("CLIENT", "KILL", "TYPE", "pubsub")
            await until(
                lambda: b"jq:handle" in own_server.tell("PUBSUB", "CHANNELS"),
                "the listener to subscribe again",
            )
            async with asyncio.timeout(10):
                await exchange(store, queue, *map(done, await take(store, queue)))
                assert await anext(signals) == Signal("ended", queue, "a")


async def test_a_damaged_queue_does_not_keep_listeners_from_connecting_again(
    own_server: Server, queue: QueueName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_PING_SECONDS", 0.05)
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        async with (
            store.listen([Topic("log", queue, None)]),
            store.listen([Topic("ended", queue, "a")]),
        ):
            settings = keys.settings(keys.Space().prefix(queue))
            own_server.tell("RENAME", settings, "elsewhere")
            own_server.tell("SET", settings, "of another program")
            await until(
                lambda: b"WRONGTYPE" in own_server.tell("INFO", "errorstats"),
                "the registration for the log to be renewed",
            )
            own_server.tell("CLIENT", "KILL", "TYPE", "pubsub")
            await until(
                lambda: b"jq:handle" in own_server.tell("PUBSUB", "CHANNELS"),
                "the listener to subscribe again",
            )


async def test_a_cancelled_call_does_not_shift_the_replies_of_others(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        for _ in range(20):
            call = asyncio.create_task(store.count(queue))
            await asyncio.sleep(0)
            call.cancel()
            (record,) = await store.get([JobKey(queue, "a")])
            assert record is not None


async def test_a_server_busy_with_another_script_is_unavailable_and_asked_again(
    own_server: Server, queue: QueueName
) -> None:
    script = (
        "local n = 0 while n < 1e9 do n = n + 1 if redis.call('GET', 'enough') then return end end"
    )
    own_server.tell("CONFIG", "SET", "busy-reply-threshold", "10")
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        (lease,) = await take(store, queue)
        script_ends = asyncio.create_task(asyncio.to_thread(own_server.tell, "EVAL", script, "0"))
        await until(lambda: b"BUSY" in own_server.tell("PING"), "the script to occupy the server")
        with pytest.raises(StoreUnavailable, match="BUSY"):
            await exchange(store, queue, done(lease))
        own_server.tell("SCRIPT", "KILL")
        await script_ends
        assert (await exchange(store, queue, done(lease))).stale == ()


async def test_a_missing_password_or_permission_is_reported(
    own_server: Server,
) -> None:
    own_server.tell("ACL", "SETUSER", "shy", "on", ">s3cret", "~*", "&*", "+@all", "-info")
    store = open_store(own_server.url.replace("://", "://shy:s3cret@"))
    with pytest.raises(StoreUnavailable, match="NOPERM"):
        await store.migrate()
    await store.aclose()
    own_server.tell("CONFIG", "SET", "requirepass", "s3cret")
    with pytest.raises(StoreUnavailable, match="NOAUTH"):
        await open_store(own_server.url).migrate()


async def test_a_permission_that_a_function_lacks_is_reported_and_costs_no_outcome(
    own_server: Server, queue: QueueName
) -> None:
    own_server.tell("ACL", "SETUSER", "shy", "on", "nopass", "~*", "&*", "+@all", "-publish")
    async with (
        open_store(own_server.url) as caller,
        open_store(own_server.url.replace("://", "://shy@")) as store,
    ):
        await caller.put([spec(queue, "a"), spec(queue, "b")])
        (lease,) = await take(store, queue)
        claim = Claim(queues=(queue,), limit=1, lease_ms=30_000)
        async with caller.listen([Topic("ended", queue, "a")]):
            with pytest.raises(StoreUnavailable, match="script"):
                await store.settle([done(lease)], worker="w1", call="again", then=claim)
        own_server.tell("ACL", "SETUSER", "shy", "+publish")
        settled = await store.settle([done(lease)], worker="w1", call="again", then=claim)
        assert settled.stale == ()
        assert [each.id for each in settled.leases] == ["b"]


async def test_a_payload_that_the_server_does_not_accept_is_refused_alone(
    own_server: Server,
) -> None:
    own_server.tell("CONFIG", "SET", "proto-max-bulk-len", "1mb")
    queue = Queue("work", own_server.url)
    task = queue.task(len)
    async with queue:
        jobs = [task.options(id=f"{n}").enqueue("x" * n) for n in (1, 1_048_567, 2)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(each) for each in found] == [Job, PayloadTooLarge, Job]


async def test_a_user_without_a_password_is_authenticated_by_name(
    own_server: Server, queue: QueueName
) -> None:
    own_server.tell("ACL", "SETUSER", "open", "on", "nopass", "~*", "&*", "+@all")
    own_server.tell("CONFIG", "SET", "requirepass", "s3cret")
    async with open_store(own_server.url.replace("://", "://open@")) as store:
        await store.put([spec(queue, "a")])
    with pytest.raises(StoreUnavailable, match="WRONGPASS"):
        await open_store(own_server.url.replace("://", "://nobody@")).migrate()


async def test_a_listener_that_is_cancelled_leaves_no_socket_open(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        for n in range(40):
            listening = asyncio.create_task(_listen(store, queue))
            for _ in range(n % 20):
                await asyncio.sleep(0)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        await store.put([spec(queue, "a")])
    wait_until(
        lambda: own_server.tell("CLIENT", "LIST").count(b" addr=") == 1,
        "all but the one that asks are gone",
    )


async def _listen(store: Store, queue: QueueName) -> None:
    async with store.listen([Topic("log", queue, None)]) as signals:
        await anext(signals)


async def test_waiting_for_missing_replicas_is_an_unknown_outcome(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(f"{own_server.url}?wait=1&wait_timeout=0.1") as store:
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await store.put([spec(queue, "a")])


async def test_checkpoints_and_steps_wait_for_replicas_and_progress_does_not(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        (lease,) = await take(store, queue)
    held = LeaseRef(queue, "a", lease.token)
    async with open_store(f"{own_server.url}?wait=1&wait_timeout=0.1") as store:
        assert await store.note([Note(lease=held, progress=b"1", lines=("on its way",))]) == [
            "held"
        ]
        for note in (Note(lease=held, saved=b"x"), Note(lease=held, steps=(("charge", b"x"),))):
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                await store.note([note])


async def test_a_call_that_a_replica_confirms_succeeds(
    own_server: Server, queue: QueueName, tmp_path: Path
) -> None:
    with servers.running(
        servers.valkey_binary(),
        tmp_path / "replica",
        "--replicaof",
        "127.0.0.1",
        str(own_server.port),
    ) as replica:
        wait_until(
            lambda: b"master_link_status:up" in replica.tell("INFO", "replication"), "replica"
        )
        async with open_store(f"{own_server.url}?wait=1") as store:
            await store.put([spec(queue, "a")])
            (lease,) = await take(store, queue)
            await exchange(store, queue, done(lease))
            assert b"j:a" in replica.tell("KEYS", "*")


async def test_a_server_without_room_for_its_functions_is_unavailable_and_asked_again(
    own_server: Server, queue: QueueName
) -> None:
    """An outcome that counted as refused would be lost."""
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        (lease,) = await take(store, queue)
        own_server.tell("CONFIG", "SET", "maxmemory", "1mb")
        own_server.tell("FUNCTION", "FLUSH")
        with pytest.raises(StoreUnavailable, match="OOM"):
            await exchange(store, queue, done(lease))
        own_server.tell("CONFIG", "SET", "maxmemory", "0")
        assert (await exchange(store, queue, done(lease))).stale == ()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("CONFIG", "SET", "maxclients", "1"), "max number of clients"),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), "NOREPLICAS"),
        (("REPLICAOF", "127.0.0.1", "1"), "READONLY"),
    ],
)
async def test_a_server_that_does_not_let_a_worker_sleep_is_unavailable(
    own_server: Server, queue: QueueName, command: tuple[str, ...], said: str
) -> None:
    async with open_store(own_server.url) as store:
        assert await take(store, queue) == []
        assert own_server.tell(*command).startswith(b"+OK")
        with pytest.raises(StoreUnavailable, match=said):
            await store.sleep([queue], worker="w1", slots=1, timeout_ms=60_000)


async def test_a_server_that_unblocks_a_sleeping_worker_is_unavailable(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        assert await take(store, queue) == []
        sleeping = asyncio.create_task(
            store.sleep([queue], worker="w1", slots=1, timeout_ms=60_000)
        )
        await until(lambda: blocked_clients(own_server), "the worker to sleep at the server")
        own_server.tell("REPLICAOF", "127.0.0.1", "1")  # as after a failover
        with pytest.raises(StoreUnavailable, match="UNBLOCKED"):
            await sleeping


async def test_a_server_that_accepts_no_subscription_is_unavailable(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        own_server.tell("CONFIG", "SET", "maxclients", "1")
        with pytest.raises(StoreUnavailable, match="max number of clients"):
            async with store.listen([Topic("ended", queue, "a")]):
                pass


async def test_a_listener_that_is_cancelled_early_does_not_cost_others_their_signals(
    own_server: Server, queue: QueueName
) -> None:
    async with open_store(own_server.url) as store:
        await store.put([spec(queue, "a")])
        async with store.listen([Topic("cancel", None, "w1")]):
            own_server.freeze()
            slow = asyncio.create_task(_listen(store, queue))
            early = asyncio.create_task(_wait_for_end(store, queue, "a"))
            for _ in range(50):  # then `slow` waits for the server, and `early` for `slow`
                await asyncio.sleep(0)
            early.cancel()
            await asyncio.gather(early, return_exceptions=True)
            own_server.thaw()
            async with store.listen([Topic("ended", queue, "a")]) as signals:
                await exchange(store, queue, *map(done, await take(store, queue)))
                async with asyncio.timeout(10):
                    assert await anext(signals) == Signal("ended", queue, "a")
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)


async def _wait_for_end(store: Store, queue: QueueName, id: str) -> None:
    async with store.listen([Topic("ended", queue, id)]) as signals:
        await anext(signals)
