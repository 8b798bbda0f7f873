"""QueueContext, what tasks, jobs, flows and workers need to know about their queue, and Definition,
what a task is.

Tasks, jobs, flows and workers hold a QueueContext instead of the Queue, so that `queue` imports
them and not the reverse.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

from jobq.api import info
from jobq.api.info import JobInfo
from jobq.api.task_handler import TaskHandler
from jobq.client import transaction
from jobq.client.connection import Connection, Session
from jobq.client.tenants import granted_tenant
from jobq.client.transaction import Surrounding
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.rules.calls import ArgumentDecoder, CallShape, is_plain
from jobq.core.values import checks
from jobq.core.values.codec import Codec, get_codec
from jobq.engine.builtin import GATHER, untagged
from jobq.engine.service import wall_clock
from jobq.errors import ConfigError
from jobq.executors import handlers
from jobq.stores.base import Clock, Store

# A task's definition: its name and, where this process has it, its function.


class Definition:
    """What a task and all its copies (`task.options(…)`) share."""

    def __init__(self, name: str, fn: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.fn = fn
        self.shape = None if fn is None else CallShape(fn, name)
        self.decoder = None if fn is None else ArgumentDecoder(fn, name)
        self._returns: Any = None

    @property
    def returns(self) -> Any:
        """The return annotation, resolved at the first use. Any if no conversion is needed."""
        if self._returns is None:
            self._returns = self._look_up()
        return self._returns

    def _look_up(self) -> Any:
        if self.decoder is None:
            return Any
        try:
            self.decoder.resolve()
        except ConfigError:
            # A parameter's annotation is wrong. The worker reports it; results do not need it.
            return Any
        return Any if is_plain(self.decoder.returns) else self.decoder.returns

    def decode(self, codec: str, data: bytes) -> Any:
        """Decode a result and convert it to the return annotation."""
        return get_codec(codec).decode(data, self.returns)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by parameter name.

        If the function is not known here, positional arguments are named by their position."""
        if self.shape is not None:
            return self.shape.bound(args, kwargs)
        return {**{str(index): value for index, value in enumerate(args)}, **kwargs}

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The given arguments by parameter name, without defaults. Some may be missing.

        InvalidJob if the function cannot have these arguments."""
        if self.shape is not None:
            return self.shape.named(args, kwargs)
        return self.bound(args, kwargs)


class Gathered(Definition):
    """The definition of the job that `group` adds: its result is the list of a task's results."""

    def __init__(self, each: Definition) -> None:
        super().__init__(GATHER)
        self._each = each

    def decode(self, codec: str, data: bytes) -> Any:
        """Decode the list and convert each item to the task's return annotation.

        With `on_child_failure="continue"` a failed member appears as its Failure."""
        return [
            untagged(item, self._each.returns) for item in get_codec(codec).decode(data, list[Any])
        ]


class QueueContext:
    """One queue's name, connection, codec and registered tasks. Fits `engine.handler.Source`."""

    def __init__(
        self,
        tenant: str | None,
        name: str,
        url: str | Callable[[], str],
        config: QueueConfig | None,
        codec: Codec,
        max_payload: int,
        task_defaults: Mapping[str, Any],
        *,
        call_defaults: Mapping[str, Any] = MappingProxyType({}),
        middleware: Sequence[Any] = (),
        enqueue_middleware: Sequence[Any] = (),
    ) -> None:
        self.name = name
        if tenant is not None:
            self.qname = QueueName(tenant, name)
        self.config = config
        self.codec = codec
        self.max_payload = max_payload
        self.task_defaults = task_defaults  # options of tasks that do not give them
        self.call_defaults = call_defaults  # options of tasks that are known only by name
        self.middleware = middleware  # around each run
        self.enqueue_middleware = enqueue_middleware
        self.connection = Connection(lambda: self.qname, url, config)
        self.tasks: dict[str, TaskHandler] = {}
        self.planned: dict[str, ScheduleSpec] = {}  # of `@queue.task(schedule=…)`, by schedule id
        # Of the same schedules: how their jobs pass through the enqueue middleware.
        self.planners: dict[str, Callable[[], Coroutine[Any, Any, ScheduleSpec]]] = {}
        self.actor: str | None = None  # the name under which operations are recorded
        self.queue: Any = None  # the Queue, for code that has only a task
        # The transaction that a call of `.sync` is in. It is asked in the thread of the caller.
        self.surrounding: Callable[[], Surrounding | None] = transaction.current
        # What an integration puts around each handler, in the thread or task that runs it.
        self.wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
        self.framework: str | None = None  # a module that prepares child processes for the tasks

    @cached_property
    def qname(self) -> QueueName:
        """The queue's tenant and name. It is not known from the beginning if a jq-server decides
        about the tenant, by the client's certificate."""
        return QueueName(granted_tenant(self.url), self.name)

    @property
    def url(self) -> str:
        """The URL of the store that keeps the jobs."""
        return self.connection.url

    @property
    def clock(self) -> Clock | None:
        """A test's clock; None: the store's own."""
        return self.connection.clock

    def now_ms(self) -> int:
        """The time by the test's clock, else by this machine's."""
        return (self.connection.clock or wall_clock)()

    def acting_as(self, actor: str) -> Self:
        """The same queue, whose operations are recorded under another actor."""
        acting = copy.copy(self)
        acting.actor = checks.check_actor(actor)
        return acting

    # ── the store ─────────────────────────────────────────────────────────────────────────────────

    async def session(self) -> Session:
        """The session of the running event loop."""
        return await self.connection.session()

    async def store(self) -> Store:
        """The store handle of the running event loop."""
        return (await self.connection.session()).store

    def opened(self) -> AbstractAsyncContextManager[Store]:
        """A store handle for a worker. It stays open even if the queue is closed meanwhile."""
        return self.connection.opened()

    def another_handle(self) -> Store:
        """Another store handle, not connected yet, for an event loop in another thread."""
        return self.connection.another_handle()

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────

    def register(self, handler: TaskHandler, schedule: ScheduleSpec | None = None) -> None:
        """Add a task and its schedule. ConfigError if another function has the same task name."""
        known = self.tasks.get(handler.name)
        # The same function again is fine: its module was reloaded.
        if known is not None and _location(known.fn) != _location(handler.fn):
            raise ConfigError(
                f"queue {self.name!r} already has a task {handler.name!r}, {_location(known.fn)}: "
                f"give {_location(handler.fn)} a different name="
            )
        handler.middleware = self.middleware
        handler.framework = self.framework
        if self.wrap is not None and handler.executor != "command":
            handler.fn = self.wrap(handler.fn)
        self.tasks[handler.name] = handler
        handlers.add(handler, self.name, self.connection.move)
        self.planned.pop(handler.name, None)
        self.planners.pop(handler.name, None)
        if schedule is not None:
            self.planned[handler.name] = schedule

    async def plans(self) -> list[ScheduleSpec]:
        """The schedules of the queue's tasks, to be stored by a worker that starts."""
        return [
            await self.planners[id]() if id in self.planners else spec
            for id, spec in self.planned.items()
        ]

    def parameters_of(self, name: str) -> Sequence[str]:
        """The positional parameters of a task, if this process has its function."""
        handler = self.tasks.get(name)
        known = handler is not None and handler.batch is None
        return CallShape(handler.fn).positional if handler and known else ()

    # ── arguments and results ─────────────────────────────────────────────────────────────────────

    def encode_call(
        self,
        definition: Definition | None,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> bytes:
        """Encode arguments. Checks them against the function, if it is known, and for size."""
        if definition is not None and definition.shape is not None:
            definition.shape.check(args, kwargs)
        payload = self.codec.for_task(name).encode_call(args, kwargs)
        return checks.check_payload(payload, self.max_payload, f"the arguments of {name} take")

    def job_info(self, record: JobRecord, definition: Definition | None = None) -> JobInfo:
        """A record as users see it. With a definition, the result has its return annotation."""
        return info.job_info(
            record, None if definition is None else definition.decode, self.tasks.get(record.name)
        )


class QueueMethods:
    """Base of the classes that make up `Queue`: methods that work on a QueueContext."""

    _context: QueueContext

    @property
    def qname(self) -> QueueName:
        """The queue's tenant and name."""
        return self._context.qname

    @property
    def actor(self) -> str | None:
        """The name that operations are recorded under; see `as_actor`."""
        return self._context.actor


def _location(fn: Callable[..., Any]) -> str:
    return ".".join(handlers.location(fn))
