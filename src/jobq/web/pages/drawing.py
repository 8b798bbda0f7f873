"""A flow as a drawing: jobs in layers, from the first to the last, and lines between them. Pure.

The steps are the usual ones of layered drawing. Each node is in a layer behind all nodes that it
waits for. Long edges get a bend in every layer that they cross. The order within a layer follows
the neighbours, which leaves few crossings. Last, nodes move as close to their neighbours as the
order allows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from jobq.web.data.flows import FlowGraph, FlowNode

NODE_WIDTH, NODE_HEIGHT = 184, 46
"""Pixels. Two lines of text: the task's name of about 22 characters, then the state and the id."""
_GAP_X, _GAP_Y = 64, 14
"""Pixels between two layers, enough for edges to fan out, and between two nodes of a layer."""
_MARGIN = 12
"""Pixels around the drawing, so that the outline of a focused node is not cut off."""
_SWEEPS = 4
"""Passes over all layers. More of them change little in flows of some hundred jobs."""
_MAX_BENDS = 4_000
"""Bends of all edges together. Beyond that, long edges are straight, and quick to draw."""

Edge = tuple[int, int]
"""From the node that runs first to the node that waits for it."""


class Layout(NamedTuple):
    """A drawing: its size, the upper left corner of each node, and a path for each edge."""

    width: int
    height: int
    positions: list[tuple[int, int]]
    paths: list[str]


def layers_of(count: int, edges: Sequence[Edge]) -> list[int]:
    """The layer of each node. Edges that close a circle are ignored, so every node gets one.

    Records can form a circle if the id of a job was used again.
    """
    later: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for first, last in edges:
        later[first].append(last)
        missing[last] += 1
    layers = [0] * count
    done = [False] * count
    ready = [node for node in range(count) if not missing[node]]
    left = iter(range(count))
    for _ in range(count):
        # Without a ready node, the nodes that are left contain a circle: open it anywhere.
        node = ready.pop() if ready else next(n for n in left if not done[n])
        done[node] = True
        for other in later[node]:
            missing[other] -= 1
            if not done[other]:
                layers[other] = max(layers[other], layers[node] + 1)
                if not missing[other]:
                    ready.append(other)
    return layers


def lay_out(count: int, edges: Sequence[Edge]) -> Layout:
    """Place nodes 0 to `count` - 1. Their order decides where two places are equally good."""
    layers = layers_of(count, edges)
    chains, layer_of_all = _with_bends(layers, edges)
    rows = _rows(layer_of_all)
    before, after = _neighbours(chains, layer_of_all)
    for sweep in range(_SWEEPS):
        _reorder(rows, before if sweep % 2 == 0 else after, backwards=sweep % 2 == 1)
    y = _heights(rows, before, after, count)
    lowest = min(y, default=0.0)
    y = [value - lowest + _MARGIN for value in y]
    positions = [(_x(layers[node]), round(y[node])) for node in range(count)]
    paths = [_path([(_x(layer_of_all[n]), round(y[n])) for n in chain]) for chain in chains]
    return Layout(
        width=_x(max(layers, default=0)) + NODE_WIDTH + _MARGIN,
        height=round(max(y, default=0.0)) + NODE_HEIGHT + _MARGIN,
        positions=positions,
        paths=paths,
    )


def _x(layer: int) -> int:
    return _MARGIN + layer * (NODE_WIDTH + _GAP_X)


def _with_bends(layers: Sequence[int], edges: Sequence[Edge]) -> tuple[list[list[int]], list[int]]:
    """Each edge as a chain of nodes and bends, and the layer of every node and bend."""
    all_layers = list(layers)
    bends = sum(max(0, layers[last] - layers[first] - 1) for first, last in edges)
    chains: list[list[int]] = []
    for first, last in edges:
        chain = [first]
        if bends <= _MAX_BENDS:
            for layer in range(layers[first] + 1, layers[last]):
                chain.append(len(all_layers))
                all_layers.append(layer)
        chains.append([*chain, last])
    return chains, all_layers


def _rows(layers: Sequence[int]) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    return rows


def _neighbours(
    chains: Sequence[Sequence[int]], layers: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """For each node and bend: its neighbours in earlier layers, and those in later ones."""
    before: list[list[int]] = [[] for _ in layers]
    after: list[list[int]] = [[] for _ in layers]
    for chain in chains:
        for one, other in pairwise(chain):
            if layers[one] < layers[other]:
                after[one].append(other)
                before[other].append(one)
    return before, after


def _reorder(
    rows: list[list[int]], neighbours: Sequence[Sequence[int]], *, backwards: bool
) -> None:
    """Sort each layer by the average position of the neighbours in the layers already sorted."""
    position = {node: n for row in rows for n, node in enumerate(row)}
    for row in reversed(rows) if backwards else rows:
        wish = {
            node: sum(position[other] for other in found) / len(found)
            if (found := neighbours[node])
            else float(position[node])
            for node in row
        }
        row.sort(key=wish.__getitem__)
        position.update({node: n for n, node in enumerate(row)})


def _heights(
    rows: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    count: int,
) -> list[float]:
    """The height of every node and bend."""
    y = [0.0] * len(before)
    for row in rows:
        for n, node in enumerate(row):
            y[node] = n * float(NODE_HEIGHT + _GAP_Y)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wishes = []
            for node in row:
                near = [*before[node], *after[node]]
                wishes.append(sum(y[n] for n in near) / len(near) if near else y[node])
            for node, height in zip(row, _apart(wishes, row, count), strict=True):
                y[node] = height
    return y


def _apart(wishes: Sequence[float], row: Sequence[int], count: int) -> list[float]:
    """The heights closest to the wishes that keep the order and the distances.

    Without distances this is a regression to a rising line, which pooling neighbours solves: two
    blocks in the wrong order become one block at their average. A bend needs less room than a node.
    """
    offsets = [0.0]
    for one, other in pairwise(row):
        room = NODE_HEIGHT + _GAP_Y if one < count and other < count else NODE_HEIGHT / 2 + _GAP_Y
        offsets.append(offsets[-1] + room)
    blocks: list[tuple[float, int]] = []  # average and size
    for wish, offset in zip(wishes, offsets, strict=False):
        average, size = wish - offset, 1
        while blocks and blocks[-1][0] > average:
            pooled, more = blocks.pop()
            average = (average * size + pooled * more) / (size + more)
            size += more
        blocks.append((average, size))
    averages = [average for average, size in blocks for _ in range(size)]
    return [average + offset for average, offset in zip(averages, offsets, strict=False)]


def _path(corners: Sequence[tuple[int, int]]) -> str:
    """A smooth line from the right side of the first node to the left side of the last one."""
    middle = NODE_HEIGHT // 2
    x, y = corners[0][0] + NODE_WIDTH, corners[0][1] + middle
    parts = [f"M{x} {y}"]
    for n, (left, top) in enumerate(corners[1:], 1):
        half = max(_GAP_X // 2, abs(left - x) // 2)
        parts.append(f"C{x + half} {y} {left - half} {top + middle} {left} {top + middle}")
        x, y = left, top + middle
        if n < len(corners) - 1:  # a bend goes straight through its layer
            x += NODE_WIDTH
            parts.append(f"H{x}")
    return "".join(parts)


# A flow as a drawing: boxes with places, and lines between them. Pure.
#
# A layer of many jobs is folded: the jobs that need attention are drawn, and one box stands for the
# rest. The list below the drawing has all jobs.

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
