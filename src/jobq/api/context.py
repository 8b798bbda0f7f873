"""QueueContext: what tasks, jobs, flows and workers need to know about their queue.

They hold a QueueContext instead of the Queue, so that `queue` imports them and not the reverse.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

from jobq.api import info
from jobq.api.definition import Definition
from jobq.api.info import JobInfo
from jobq.api.task_handler import TaskHandler
from jobq.client import transaction
from jobq.client.connection import Connection
from jobq.client.session import Session
from jobq.client.tenants import granted_tenant
from jobq.client.transaction import Surrounding
from jobq.core import checks
from jobq.core.calls import CallShape
from jobq.core.codec import Codec
from jobq.core.queues import QueueConfig, ScheduleSpec
from jobq.core.records import JobRecord, QueueName
from jobq.engine.clock import wall_clock
from jobq.errors import ConfigError
from jobq.executors import handlers
from jobq.stores.base import Clock, Store


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
