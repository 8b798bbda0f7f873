"""Where the jobs of a flow are drawn."""

from __future__ import annotations

import random
import re
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobq.web.pages.drawing import NODE_HEIGHT, NODE_WIDTH, Edge, Layout, lay_out, layers_of

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Making a graph takes seconds on a loaded machine, and that is no finding."""


def overlapping(layout: Layout) -> list[tuple[int, int]]:
    return [
        (one, other)
        for (one, (x, y)), (other, (left, top)) in combinations(enumerate(layout.positions), 2)
        if abs(x - left) < NODE_WIDTH and abs(y - top) < NODE_HEIGHT
    ]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """Up to 30 nodes with edges in all directions, also to themselves and in circles."""
    count = draw(st.integers(0, 30))
    node = st.integers(0, max(0, count - 1))
    return count, draw(st.lists(st.tuples(node, node), max_size=60)) if count else []


@LOADED
@given(graphs())
def test_nodes_never_overlap_and_are_inside_the_drawing(graph: tuple[int, list[Edge]]) -> None:
    count, edges = graph
    layout = lay_out(count, edges)
    assert len(layout.positions) == count
    assert len(layout.paths) == len(edges)
    assert overlapping(layout) == []
    for x, y in layout.positions:
        assert 0 <= x <= layout.width - NODE_WIDTH
        assert 0 <= y <= layout.height - NODE_HEIGHT


@LOADED
@given(graphs())
def test_a_node_is_right_of_all_nodes_that_it_waits_for(graph: tuple[int, list[Edge]]) -> None:
    count, edges = graph
    forward = [(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]]
    positions = lay_out(count, forward).positions
    assert all(positions[first][0] < positions[last][0] for first, last in forward)


def test_a_circle_is_drawn_too() -> None:
    assert sorted(layers_of(3, [(0, 1), (1, 2), (2, 0)])) == [0, 1, 2]


def test_a_chain_is_a_straight_line() -> None:
    layout = lay_out(5, [(n, n + 1) for n in range(4)])
    assert len({y for _, y in layout.positions}) == 1


def test_the_job_that_joins_a_group_is_in_the_middle_of_it() -> None:
    layout = lay_out(4, [(0, 3), (1, 3), (2, 3)])
    heights = [y for _, y in layout.positions]
    assert heights[3] == heights[1] == sum(heights[:3]) // 3


def test_long_edges_pass_between_the_nodes_of_other_layers() -> None:
    chain = [(n, n + 1) for n in range(3)]
    layout = lay_out(4, [*chain, (0, 3)])
    long = [float(each) for each in re.findall(r" ([\d.]+)H", layout.paths[3])]
    taken = [y for _, y in layout.positions[1:3]]
    assert long
    assert all(not y <= bend <= y + NODE_HEIGHT for y in taken for bend in long)


def test_three_hundred_nodes_have_few_bends_to_draw() -> None:
    seeded = random.Random(19)
    edges = [tuple(sorted(seeded.sample(range(300), 2))) for _ in range(600)]
    layout = lay_out(300, [(a, b) for a, b in edges])
    assert overlapping(layout) == []
    assert sum(map(len, layout.paths)) < 500_000, "bytes that every update of the page sends"
