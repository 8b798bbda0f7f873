"""Flow trees: a job with everything it waits for, and their states."""

from __future__ import annotations

import pytest

from jobq import JobNotFound, Queue, Reject, State, Worker


async def _diamond(queue: Queue, other: Queue) -> None:
    async with queue.flow(id="d") as flow:
        bottom = flow.add(queue.task_by_name("bottom"))
        left = flow.add(other.task_by_name("left", id="left"), bottom.ref)
        right = flow.add(queue.task_by_name("right"), bottom.ref)
        flow.add(queue.task_by_name("top", id="top"), [left.ref, right.ref])


DIAMOND = """\
top top (api) blocked
├─ left left (other) blocked
│  └─ bottom d.0 (api) waiting
└─ right d.2 (api) blocked
   └─ bottom d.0 (api) waiting ↑"""


async def test_a_tree_shows_a_job_with_everything_it_waits_for(queue: Queue, url: str) -> None:
    async with Queue("other", url) as other:
        await _diamond(queue, other)
        tree = await queue.flow_tree("top")
        assert str(tree) == repr(tree) == DIAMOND
        assert tree.complete
        assert tree.counts == {State.BLOCKED: 3, State.WAITING: 1}
        assert [(node.depth, node.id, node.again) for node in tree] == [
            (0, "top", False),
            (1, "left", False),
            (2, "d.0", False),
            (1, "d.2", False),
            (2, "d.0", True),
        ]


async def test_a_whole_flow_is_found_by_its_id(queue: Queue, url: str) -> None:
    async with Queue("other", url) as other:
        await _diamond(queue, other)
        assert str(await queue.flow_tree("d")) == DIAMOND
        await queue.flow_tree("d.0")  # a job's own id is that job
        with pytest.raises(JobNotFound, match="no job and no flow 'x' in queue 'api'"):
            await queue.flow_tree("x")


async def test_a_flow_with_several_last_jobs_is_several_trees(queue: Queue) -> None:
    async with queue.flow(id="f") as flow:
        shared = flow.add(queue.task_by_name("shared"))
        flow.add(queue.task_by_name("one"), shared.ref)
        flow.add(queue.task_by_name("two"), shared.ref)
    assert [(node.depth, node.name, node.again) for node in await queue.flow_tree("f")] == [
        (0, "one", False),
        (1, "shared", False),
        (0, "two", False),
        (1, "shared", True),
    ]


async def test_failures_are_shown_where_they_happened(queue: Queue) -> None:
    @queue.task
    async def broken() -> None:
        raise Reject("out of paper")

    async with queue.flow() as flow:
        child = flow.add(broken)
        parent = flow.add(queue.task_by_name("parent"), child.ref)
    async with Worker(queue):
        await parent.wait(timeout=10)
    text = str(await queue.flow_tree(parent.id))
    assert f"└─ broken {child.id} (api) failed: jobq.Reject: out of paper" in text


async def test_a_tree_is_bounded_and_says_what_it_leaves_out(queue: Queue) -> None:
    async with queue.flow(id="f") as flow:
        children = [flow.add(queue.task_by_name("child")) for _ in range(50)]
        middle = flow.add(queue.task_by_name("middle"), [child.ref for child in children])
        flow.add(queue.task_by_name("top", id="top"), middle.ref, children[0].ref)
    tree = await queue.flow_tree("top", max_jobs=10)
    assert not tree.complete
    assert len(tree.nodes) <= 12
    lines = str(tree).splitlines()
    assert lines[-2].strip("│ ").startswith("└─ … 4")
    assert lines[-2].endswith("more")
    assert lines[-1] == "└─ child f.0 (api) waiting ↑"


async def test_a_long_chain_can_be_shown(queue: Queue) -> None:
    async with queue.flow() as flow:
        job = flow.add(queue.task_by_name("step"))
        for _ in range(1500):
            job = flow.add(queue.task_by_name("step"), job.ref)
    tree = await queue.flow_tree(job.id, max_jobs=5000)
    assert tree.nodes[-1].depth == 1500
    assert len(str(tree).splitlines()) == 1501


async def test_a_child_whose_record_is_gone_is_shown_as_gone(queue: Queue) -> None:
    @queue.task
    async def quick() -> None: ...

    async with queue.flow() as flow:
        child = flow.add(quick)
        parent = flow.add(queue.task_by_name("parent", delay=3600), child.ref)
    async with Worker(queue):
        await child.wait(timeout=10)
    assert await child.remove()
    assert [node.state for node in await queue.flow_tree(parent.id)] == [State.DELAYED, None]
    assert "gone" in str(await queue.flow_tree(parent.id))
