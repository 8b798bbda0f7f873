"""`put`: jobs go to the function that accepts them, grouped by queue or partition."""

from __future__ import annotations

import os
from collections.abc import Sequence

from jobq.core.bounds import depend_on_each_other
from jobq.core.graph import check_locks
from jobq.core.new_jobs import check_specs
from jobq.core.records import JobKey, JobSpec, PutResult
from jobq.errors import QueueFull
from jobq.stores.valkey import job_bodies, packing
from jobq.stores.valkey.calls import Calls, PartitionsChanged, Refused
from jobq.stores.valkey.edges import Edges
from jobq.stores.valkey.flows import Flows
from jobq.stores.valkey.functions import function
from jobq.stores.valkey.job_bodies import Prepared
from jobq.stores.valkey.listener import Listener
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.put_results import put_result, refuse
from jobq.stores.valkey.wire import Argument

_PUT, _PUT_UNIFORM = function("put"), function("put_uniform")
_BATCH = 2000
"""Jobs per call: the server does nothing else meanwhile, and 2,000 take it about 6 ms."""


class Puts:
    """Accepts jobs."""

    def __init__(
        self,
        calls: Calls,
        partitions: Partitions,
        mail: Mail,
        edges: Edges,
        flows: Flows,
        listener: Listener,
    ) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail
        self._edges = edges
        self._flows = flows
        self._channel = listener.channel
        self._expected = listener.expected

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """See Pipelined."""
        return Prepared(check_specs(specs), self._expected)

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """See HotStore."""
        if flow is not None:
            return await self._flows.put(specs, flow, last)
        specs = check_specs(specs)
        if not specs:
            return []
        try:
            return await self._put(specs)
        except PartitionsChanged:
            self._partitions.forget_all()
            return await self._put(specs)

    async def _put(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        queue, partitions = specs[0].queue, self._partitions
        specs = specs if isinstance(specs, Prepared) else Prepared(specs, self._expected)
        if (
            specs.uniform is not None
            and len(specs) <= _BATCH
            and partitions.known.get(queue) == 1
            and queue in partitions.registered
        ):
            return await self._put_at(partitions.space.prefix(queue), specs, {})
        where = await self._edges.check(specs) if any(spec.after for spec in specs) else {}
        if where and depend_on_each_other(specs):  # the rules of a flow apply
            check_locks(specs)
        groups = await self._by_prefix(specs)
        if len(groups) == 1 and len(specs) <= _BATCH and not (where and specs.too_large):
            ((prefix, _),) = groups.items()
            return await self._put_at(prefix, specs, where)
        own = {JobKey(spec.queue, spec.id) for spec in specs} if where else set()
        if any(edge.job in own for spec in specs for edge in spec.after):
            # These jobs wait for each other and need several calls. Put one call at a time, a job
            # would not find children that a later call puts. So they go in as a flow.
            return await self._put_as_flow(specs)
        answers: list[PutResult | None] = [None] * len(specs)
        for prefix, positions in groups.items():
            for start in range(0, len(positions), _BATCH):
                part = positions[start : start + _BATCH]
                results = await self._put_part(prefix, [specs[n] for n in part], where)
                for n, answer in zip(part, results, strict=True):
                    answers[n] = answer
        return answers  # type: ignore[return-value]

    async def _put_as_flow(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        try:
            return await self._flows.put(specs, f"put-{os.urandom(9).hex()}", True)
        except QueueFull as full:
            return [
                PutResult(id=spec.id, life=0, state=None, full=full.max_waiting) for spec in specs
            ]

    async def _by_prefix(self, specs: Sequence[JobSpec]) -> dict[str, list[int]]:
        partitions = self._partitions
        groups: dict[str, list[int]] = {}
        for n, spec in enumerate(specs):
            if spec.queue not in partitions.registered:
                await partitions.register(spec.queue)
            if spec.queue not in partitions.known:
                await partitions.count(spec.queue)
            groups.setdefault(partitions.prefix_of(spec.queue, spec.id, spec.key), []).append(n)
        return groups

    async def _put_at(
        self, prefix: str, specs: Prepared, where: dict[JobKey, str]
    ) -> list[PutResult]:
        if specs.too_large:
            middle = len(specs) // 2
            first = await self._put_part(prefix, specs[:middle], where)
            return first + await self._put_part(prefix, specs[middle:], where)
        calls, queue = self._calls, specs[0].queue
        if specs.uniform is None:
            name, args = _PUT, self._arguments(specs, where)
        else:
            name, args = _PUT_UNIFORM, specs.uniform
        try:
            reply = await calls.fcall_list(name, prefix, (calls.now(), *args), confirmed=True)
        except Refused as e:
            refuse(e, specs)
        to_wake, messages, due_in, answers, had_no_mode = reply
        if had_no_mode:
            await self._partitions.register(queue, again=True)
        if to_wake or messages or due_in >= 0:
            await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages, due_in=due_in)
        for answer in answers:
            specs.results[answer[0] - 1] = put_result(queue, answer)
        return specs.results

    async def _put_part(
        self, prefix: str, specs: Sequence[JobSpec], where: dict[JobKey, str]
    ) -> list[PutResult]:
        return await self._put_at(prefix, Prepared(specs, self._expected), where)

    def _arguments(
        self, specs: Sequence[JobSpec], where: dict[JobKey, str]
    ) -> tuple[Argument, ...]:
        """The arguments of `put` for jobs of any kind (see lua/put.lua)."""
        plain = keyed = 0
        cost, look = 1, False
        jobs: list[Argument] = []
        tied: list[Argument] = []
        body_of, channel, expected = job_bodies.body_of, self._channel, self._expected
        for n, spec in enumerate(specs, 1):
            body, singly = body_of(
                spec, channel if expected and (spec.queue, spec.id) in expected else None
            )
            jobs += (spec.id, body)
            if singly:
                look = True
                if spec.after:
                    tied += (n, packing.encode_edges(spec.after, where.__getitem__))
            if spec.key is None:
                plain = plain or n
            else:
                keyed = keyed or n
            if spec.cost > cost:
                cost = spec.cost
        look = look or len({spec.id for spec in specs}) != len(specs)
        return (
            len(specs),
            plain,
            keyed,
            cost,
            2 if tied and depend_on_each_other(specs) else int(look),
            *jobs,
            *tied,
        )
