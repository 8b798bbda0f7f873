"""`jq-ctl store copy`: queues move to another store, also if the command is killed on the way."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.core.records.jobs import Edge, Filter, JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.core.rules import copies
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.cli.kit import Ctl
from tests.stores.postgres.servers import FAST, postgres_or_skip, running
from tests.stores.valkey import servers
from tests.waiting import until

SHOP = QueueName("default", "shop")
JOBS = 5_000
KILLS = 4


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/target.db"


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        binary = servers.valkey_binary()
    except servers.Missing as missing:
        pytest.skip(f"there is no valkey on this machine: {missing}")
    with servers.running(binary, tmp_path_factory.mktemp("valkey")) as server:
        yield server.url


def submit(ctl: Ctl, *ids: str) -> None:
    lines = "\n".join(json.dumps({"name": "add", "id": id, "args": [1, 1]}) for id in ids)
    ctl("job", "submit", "-q", "shop", "--lines", "-", input=lines)


def test_a_dry_run_shows_the_plan_and_changes_nothing(ctl: Ctl, url: str, target: str) -> None:
    submit(ctl, "a", "b")
    (plan,) = ctl.json("store", "copy", url, target, "--dry-run")
    assert (plan["queue"], plan["waiting"], plan["stayed"]) == ("shop", 2, {})
    assert not Path(target.removeprefix("sqlite:///")).exists()
    assert ctl.json("queue", "stats", "shop")["counts"]["waiting"] == 2


def test_queues_move(ctl: Ctl, url: str, target: str) -> None:
    submit(ctl, "a", "b")
    ctl("job", "submit", "add", "-q", "other", "--payload", "[1, 2]")
    (done,) = ctl.json("store", "copy", url, target, "-q", "shop", "--yes")
    assert (done["waiting"], done["stayed"]) == (2, {})
    there = Ctl(target)
    assert [q["queue"] for q in there.json("queue", "list")] == ["shop"]
    assert {job["id"] for job in there.json("job", "list", "-q", "shop")} == {"a", "b"}
    ctl("store", "copy", url, target, "--yes")
    assert [q["queue"] for q in there.json("queue", "list")] == ["other", "shop"]


def test_the_command_asks_before_it_moves_anything(ctl: Ctl, url: str, target: str) -> None:
    submit(ctl, "a")
    refused = ctl("store", "copy", url, target, input="n\n", code=1)
    assert "nothing was done" in refused.stderr
    assert ctl.json("queue", "stats", "shop")["counts"]["waiting"] == 1


def test_jobs_that_stay_are_named_and_the_exit_code_is_1(ctl: Ctl, url: str, target: str) -> None:
    submit(ctl, "child")

    async def tie() -> None:
        async with open_store(url) as store:
            await store.put(
                [
                    JobSpec(
                        queue=SHOP,
                        id="parent",
                        name="add",
                        payload=b"[[1,1],{}]",
                        after=(Edge(JobKey(SHOP, "child")),),
                    )
                ]
            )

    asyncio.run(tie())
    shown = ctl("store", "copy", url, target, "--yes", code=1)
    assert "shop: 2 jobs stayed: part of a flow" in shown.stderr


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("memory://a", "sqlite:///b.db", "exists only inside one process"),
        ("sqlite:///a.db", "sqlite:///a.db", "the same store"),
        ("sqlite:///a.db", "sqlite:///./a.db", "the same store"),
        ("sqlite:///missing.db", "sqlite:///b.db", "no store at sqlite:///missing.db"),
    ],
)
def test_wrong_addresses_are_refused(
    ctl: Ctl,
    source: str,
    target: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in ctl("store", "copy", source, target, "--yes", code=2).stderr


# ── killed ────────────────────────────────────────────────────────────────────────────────────────


async def in_circulation(store: Store) -> set[str]:
    """The ids that a worker could claim now or later."""
    found: set[str] = set()
    for state in (State.WAITING, State.DELAYED, State.ACTIVE):
        cursor: str | None = None
        while True:
            page = await store.find(Filter(queue=SHOP, state=state), cursor=cursor, limit=500)
            found |= {r.id for r in page.records if not copies.is_held(r.due_ms)}
            if (cursor := page.cursor) is None:
                break
    return found


async def moved(store: Store) -> int:
    counts = await store.count(SHOP)
    return counts.get(State.WAITING, 0) + counts.get(State.DELAYED, 0)


def test_a_copy_to_postgresql_that_is_killed_loses_nothing_and_repeats_nothing(url: str) -> None:
    postgres_or_skip()
    with running(FAST) as server:
        asyncio.run(_killed(url, server.url, random.Random("postgres")))


@pytest.mark.parametrize("direction", ["sqlite-sqlite", "sqlite-valkey", "valkey-sqlite"])
def test_a_copy_that_is_killed_loses_nothing_and_repeats_nothing(
    direction: str, url: str, target: str, valkey: str
) -> None:
    urls = {
        "sqlite-sqlite": (url, target),
        "sqlite-valkey": (url, f"{valkey}/1"),
        "valkey-sqlite": (f"{valkey}/2", target),
    }
    asyncio.run(_killed(*urls[direction], random.Random(direction)))


async def _killed(source: str, target: str, chance: random.Random) -> None:
    ids = [f"j{n:05}" for n in range(JOBS)]
    async with open_store(source) as here, open_store(target) as there:
        for start in range(0, JOBS, 1000):
            await here.put(
                [
                    JobSpec(
                        queue=SHOP,
                        id=id,
                        name="add",
                        payload=b"[[1,1],{}]",
                        delay_ms=0 if n % 10 else 3_600_000,
                    )
                    for n, id in enumerate(ids[start : start + 1000], start)
                ]
            )
        for stop in sorted(chance.randrange(1, JOBS) for _ in range(KILLS)):
            await _kill_at(stop, _start(source, target), there)
            both = await in_circulation(here) & await in_circulation(there)
            assert not both, f"{len(both)} jobs are in circulation in both stores"
        last = _start(source, target)
        output, _ = last.communicate(timeout=60)
        assert last.returncode == 0, output
        assert await in_circulation(here) == set()
        assert await in_circulation(there) == set(ids)
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await there.find(
                Filter(queue=SHOP, state=State.WAITING), cursor=cursor, limit=500
            )
            seen += [record.id for record in page.records]
            if (cursor := page.cursor) is None:
                break
        assert seen[::-1] == [id for n, id in enumerate(ids) if n % 10]


async def _kill_at(stop: int, copying: subprocess.Popen[str], there: Store) -> None:
    """Kill the process when this many jobs are in the target."""

    async def far_enough() -> bool:
        return copying.poll() is not None or await moved(there) >= stop

    try:
        await until(far_enough, f"{stop} jobs in the target")
    finally:
        copying.kill()
        copying.communicate()


def _start(source: str, target: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jobq.cli.ctl", "store", "copy", source, target, "--yes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
