"""Queue: a queue in the store of settings.JOBQ, whose jobs respect Django's transactions."""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakSet

from jobq.api.queue import Queue as PlainQueue
from jobq.client.transaction import Surrounding
from jobq.django.config import Config, Enqueue, check_enqueue, config, database_url
from jobq.django.connections import surrounding, with_connections

__all__ = ["Enqueue", "Queue", "queues"]

_queues: WeakSet[Queue] = WeakSet()


class Queue(PlainQueue):
    """A queue of a Django project. It takes what `jobq.Queue` takes.

    Its store and tenant are those of settings.JOBQ, unless `url` and `tenant` name others. The
    store is looked up when the queue opens, so tests that use another database use its store.

    `enqueue` says when `.sync.enqueue` inside `transaction.atomic()` stores a job (default:
    JOBQ["ENQUEUE"]). "after_commit": when the transaction has committed; the job has its id at
    once. "in_transaction": as a part of the transaction, if the jobs are in the PostgreSQL database
    `database`. "at_once": without regard to the transaction.

    A run of a task begins and ends like a request: connections to databases that are broken or too
    old are closed.
    """

    _is_listed: ClassVar[bool] = True
    """Whether `queues()` has queues of this class."""

    def __init__(
        self,
        name: str = "default",
        url: str | None = None,
        *,
        tenant: str | None = None,
        enqueue: Enqueue | None = None,
        database: str | None = None,
        **declared: Any,
    ) -> None:
        if enqueue is not None:
            check_enqueue(enqueue, "enqueue")
        super().__init__(name, url, tenant=tenant or config().tenant, **declared)
        self._enqueue = enqueue
        self._database = database
        self._context.surrounding = self._surrounding
        self._context.wrap = with_connections
        self._context.framework = "jobq.django.ready"
        if self._is_listed:
            _queues.add(self)

    def _default_url(self) -> str:
        """The store of settings.JOBQ."""
        return default_url(config()) or super()._default_url()

    @property
    def database(self) -> str:
        """The database whose transactions matter for jobs."""
        return self._database or config().alias

    def _surrounding(self) -> Surrounding | None:
        mode = self._enqueue or config().mode()
        return surrounding(mode, self.database, self._context.url)


def default_url(given: Config) -> str | None:
    """The store that the settings name; None if they name none."""
    if given.url is not None or given.database is None:
        return given.url
    return database_url(given.database)


def queues() -> list[Queue]:
    """The queues of all imported modules, sorted by name."""
    return sorted(_queues, key=lambda queue: (queue.name, queue.tenant))
