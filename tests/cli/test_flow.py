"""`jq-ctl flow …`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jobq import Queue
from tests.cli.kit import Ctl


@pytest.fixture
def flow(url: str) -> None:
    """The flow `sum`: two additions below a third, which has the id `top`."""

    async def submit() -> None:
        async with Queue("shop", url) as shop, shop.flow(id="sum") as flow:
            add = shop.task_by_name("add")
            parts = [flow.add(add, n, n) for n in (1, 2)]
            flow.add(add.options(id="top"), parts[0].ref, parts[1].ref)

    asyncio.run(submit())


@pytest.mark.usefixtures("flow")
def test_a_flow_is_shown_as_a_tree(ctl: Ctl) -> None:
    expected = [
        "add top (shop) blocked",
        "├─ add sum.0 (shop) waiting",
        "└─ add sum.1 (shop) waiting",
        "1 blocked, 2 waiting",
    ]
    for id in ("top", "sum"):
        assert ctl("flow", "show", id).stdout.splitlines() == expected
    document = ctl.json("flow", "show", "top", "-q", "shop")
    assert (document["complete"], document["counts"]) == (True, {"blocked": 1, "waiting": 2})
    assert [(job["depth"], job["id"], job["state"]) for job in document["jobs"]] == [
        (0, "top", "blocked"),
        (1, "sum.0", "waiting"),
        (1, "sum.1", "waiting"),
    ]


@pytest.mark.usefixtures("flow")
def test_a_finished_flow_shows_its_states(ctl: Ctl, work: Callable[[], None]) -> None:
    work()
    work()
    assert ctl.json("flow", "show", "sum")["counts"] == {"completed": 3}
    assert ctl.json("job", "status", "top")["result"] == 6


@pytest.mark.usefixtures("flow")
def test_a_large_tree_is_cut_and_says_so(ctl: Ctl) -> None:
    assert "└─ … 1 more" in ctl("flow", "show", "top", "-n", "2").stdout
    assert ctl.json("flow", "show", "top", "-n", "2")["complete"] is False


@pytest.mark.usefixtures("flow")
def test_a_flow_is_cancelled_whole(ctl: Ctl) -> None:
    assert "nothing was done" in ctl("flow", "cancel", "sum", input="n\n", code=1).stderr
    assert ctl.json("flow", "cancel", "sum", "--yes") == {"id": "sum", "cancelled": ["top"]}
    assert ctl.json("flow", "show", "sum")["counts"] == {"cancelled": 3}
    assert "all its jobs have ended already" in ctl("flow", "cancel", "sum", "--yes", code=1).stdout


def test_an_unknown_flow_is_an_error(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    assert "no job or flow nobody in any queue" in ctl("flow", "show", "nobody", code=1).stderr
    assert "in queue 'shop'" in ctl("flow", "cancel", "nobody", "-q", "shop", code=1).stderr


@pytest.mark.usefixtures("flow")
def test_a_flow_is_run_again_from_its_failed_members(ctl: Ctl, work: Callable[[], None]) -> None:
    ctl("job", "cancel", "sum.1")
    work()
    assert ctl.json("flow", "show", "sum")["counts"] == {
        "completed": 1,
        "cancelled": 1,
        "failed": 1,
    }
    assert "nothing was done" in ctl("flow", "rerun", "sum", input="n\n", code=1).stderr
    assert ctl.json("flow", "rerun", "sum", "--yes") == {"id": "sum", "rerun": 2}
    counts = ctl.json("flow", "show", "sum")["counts"]
    assert counts == {"completed": 1, "waiting": 1, "blocked": 1}
    work()
    assert ctl.json("job", "status", "top")["result"] == 6
    assert "none of its jobs failed" in ctl("flow", "rerun", "sum", code=1).stdout
