"""A flow as a drawing: boxes with places, and lines between them. Pure.

A layer of many jobs is folded: the jobs that need attention are drawn, and one box stands for the
rest. The list below the drawing has all jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from jobq.web.data.flows import FlowGraph, FlowNode
from jobq.web.graph_layout import NODE_HEIGHT, NODE_WIDTH, lay_out, layers_of

MAX_LAYER = 16
"""Boxes of one layer: about what fits on a screen."""
_ATTENTION = ("failed", "active", "gone", "cancelled", "waiting", "delayed", "blocked", "completed")
"""States in the order in which jobs of a folded layer are drawn."""


class Box(NamedTuple):
    """A job, or several that are not drawn by themselves."""

    x: int
    y: int
    node: FlowNode | None
    """None: the box stands for several jobs."""
    jobs: int
    counts: dict[str, int]
    """Jobs by state."""


class DrawnEdge(NamedTuple):
    """From the job that runs first to the job that waits for it: numbers of boxes."""

    first: int
    last: int
    path: str
    done: bool
    """Whether the first job has completed, so nobody waits for it any more."""


class Drawing(NamedTuple):
    """All boxes and lines, in the order in which jobs run."""

    width: int
    height: int
    boxes: list[Box]
    edges: list[DrawnEdge]
    box_width: int = NODE_WIDTH
    box_height: int = NODE_HEIGHT


def draw(graph: FlowGraph) -> Drawing:
    """The drawing of a flow."""
    edges = [(edge.waited_for, edge.waiter) for edge in graph.edges]
    groups, rest = _folded(graph, layers_of(len(graph.nodes), edges))
    box_of = {node: box for box, group in enumerate(groups) for node in group}
    between = sorted({(box_of[first], box_of[last]) for first, last in edges})
    # Jobs that are left out stand for themselves, in front of the job that waits for them.
    more = [(box_of[n], node.hidden) for n, node in enumerate(graph.nodes) if node.hidden]
    between += [(len(groups) + n, waiter) for n, (waiter, _) in enumerate(more)]
    layout = lay_out(len(groups) + len(more), between)
    boxes = [
        _box(graph, group, folded, layout.positions[n])
        for n, (group, folded) in enumerate(zip(groups, rest, strict=True))
    ]
    boxes += [
        Box(*layout.positions[len(groups) + n], node=None, jobs=hidden, counts={})
        for n, (_, hidden) in enumerate(more)
    ]
    return Drawing(
        width=layout.width,
        height=layout.height,
        boxes=boxes,
        edges=[
            DrawnEdge(first, last, path, set(boxes[first].counts) == {"completed"})
            for (first, last), path in zip(between, layout.paths, strict=True)
        ],
    )


def _box(graph: FlowGraph, group: list[int], folded: bool, position: tuple[int, int]) -> Box:
    counts = Counter(graph.nodes[n].state for n in group)
    node = None if folded else graph.nodes[group[0]]
    return Box(*position, node=node, jobs=len(group), counts=dict(counts))


def _folded(graph: FlowGraph, layers: list[int]) -> tuple[list[list[int]], list[bool]]:
    """The nodes of each box, layer by layer, and whether the box stands for several jobs."""
    by_layer: defaultdict[int, list[int]] = defaultdict(list)
    for node, layer in enumerate(layers):
        by_layer[layer].append(node)
    groups: list[list[int]] = []
    rest: list[bool] = []
    for layer in sorted(by_layer):
        nodes = by_layer[layer]
        first = nodes
        if len(nodes) > MAX_LAYER:
            urgent = sorted(nodes, key=lambda n: _ATTENTION.index(graph.nodes[n].state))
            first = sorted(urgent[: MAX_LAYER - 1])
        drawn = set(first)
        groups += [[node] for node in first]
        rest += [False] * len(first)
        if left := [node for node in nodes if node not in drawn]:
            groups.append(left)
            rest.append(True)
    return groups, rest
