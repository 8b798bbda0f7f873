"""One flow as a drawn graph and as a list."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.flows import FlowGraph, FlowNode, flow
from jobq.web.pages.flow_drawing import draw
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """GET /flow?tenant=&queue=&id="""
    asked = {name: request.query_params.get(name, "") for name in ("tenant", "queue", "id")}
    graph = await flow(view_of(request), **asked)
    waits = Counter(edge.waiter for edge in graph.edges)
    return render(
        request,
        "flow.html",
        flow=graph,
        drawing=draw(graph),
        waits=[waits[n] + node.hidden for n, node in enumerate(graph.nodes)],
        last=_last(graph),
        tenant=asked["tenant"],
        queue=asked["queue"],
    )


def _last(graph: FlowGraph) -> FlowNode | None:
    """The job that waits for all others. None if there are several, or if it is gone."""
    waited_for = {edge.waited_for for edge in graph.edges}
    tops = [node for n, node in enumerate(graph.nodes) if n not in waited_for]
    return tops[0] if len(tops) == 1 and tops[0].state != "gone" else None
