"""Settings of a role, a database, a server or the environment do not change what jobq does."""

from __future__ import annotations

import pytest

from jobq import ConfigError, Queue, StoreUnavailable, Worker
from tests.stores.postgres.callers import add_to, events, ids
from tests.stores.postgres.servers import Server, ask, running_pair
from tests.waiting import PATIENCE_S

SETTINGS = {
    "array_nulls": "'off'",
    "bytea_output": "'escape'",
    "client_encoding": "'LATIN1'",
    "datestyle": "'German', 'DMY'",
    "default_transaction_deferrable": "'on'",
    "default_transaction_isolation": "'serializable'",
    "default_transaction_read_only": "'on'",
    "enable_indexscan": "'off'",
    "extra_float_digits": "'-15'",
    "idle_in_transaction_session_timeout": "'5s'",
    "intervalstyle": "'sql_standard'",
    "lock_timeout": "'1ms'",
    "search_path": "'pg_temp', 'public'",
    "standard_conforming_strings": "'off'",
    "timezone": "'Asia/Kathmandu'",
    "transform_null_equals": "'on'",
}


@pytest.mark.parametrize("listen", ["yes", "no"])
@pytest.mark.parametrize("name", SETTINGS)
async def test_a_role_with_settings_of_its_own_uses_the_store(
    server: Server, store: str, name: str, listen: str
) -> None:
    if not ask(server.url, "select 1 from pg_roles where rolname = 'someone'"):
        ask(server.url, "create role someone login superuser")
    ask(server.url, "alter role someone reset all")
    ask(server.url, f"alter role someone set {name} to {SETTINGS[name]}")
    theirs = store.replace("://postgres@", "://someone@")
    async with Queue("wörk€", f"{theirs}&listen={listen}") as queue, Worker(queue):
        add = add_to(queue)
        jobs = [await add.options(id="ïd€").enqueue(1), await add.options(unique=True).enqueue(2)]
        jobs += await add.enqueue_many([(n,) for n in range(5)])
        assert [await job.result(timeout=PATIENCE_S) for job in jobs] == [2, 3, 1, 2, 3, 4, 5]
        assert (await events(queue)).count("completed") == 7
    async with Queue("wörk€", store) as same:  # of a role without settings
        assert await ids(same) == {job.id for job in jobs}


async def test_the_encoding_of_the_environment_is_not_used(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Queue("wörk", store) as queue:
        await add_to(queue).options(id="ïd").enqueue(1)
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    async with Queue("wörk", store) as queue:
        assert await ids(queue) == {"ïd"}


async def test_a_database_that_cannot_store_every_character_is_refused(server: Server) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):
        made = f"encoding '{encoding}' lc_collate 'C' lc_ctype 'C' template template0"
        ask(server.url, f"create database {encoding} {made}")
    with pytest.raises(ConfigError, match="has the encoding LATIN1, and jobq needs UTF8"):
        async with Queue("work", server.url_of("latin1")):
            pass
    async with Queue("wörk€", server.url_of("sql_ascii")) as queue, Worker(queue):
        job = await add_to(queue).options(id="ïd€").enqueue(1)
        assert await job.result(timeout=PATIENCE_S) == 2
        assert await ids(queue) == {"ïd€"}


async def test_a_standby_is_unavailable_whether_notifications_are_used_or_not() -> None:
    with running_pair() as pair:
        async with Queue("work", pair.primary.url) as queue:
            await add_to(queue).enqueue(1)
        pair.wait_until_in_sync()
        for listen in ("yes", "no"):
            with pytest.raises(StoreUnavailable, match="during recovery"):
                async with Queue("work", f"{pair.replica.url}?listen={listen}") as queue:
                    await add_to(queue).enqueue(1)
