"""The session of a worker: what it said of itself when it registered.

The worker sends its session with every call, so any replica of the server can serve the call
without having seen the registration. A session is no secret: each call is checked against the
caller's token.
"""

from __future__ import annotations

import base64
import secrets
import socket
from binascii import Error as NotBase64
from functools import lru_cache

import msgspec

from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import MAX_CONCURRENCY, WorkerRecord
from jobq.core.values.checks import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    check_int,
    check_queue_name,
    check_short_name,
    check_tenant,
)
from jobq.errors import InvalidJob

MAX_WORKER_NAME = 128
"""Characters of a worker's name."""
MAX_QUEUES = 100
"""Queues of one worker. Every claim names all of them."""
_MAX_TEXT = 70_000
"""Characters of a session: the names of its queues, of which each may take four bytes."""
_MAX_HOST = 255
"""Characters of a host's name, as in DNS."""


class Session(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A registered worker."""

    worker: str
    tenant: str
    queues: tuple[str, ...]
    concurrency: int
    host: str
    pid: int
    started_ms: int
    incarnation: str

    @property
    def queue_names(self) -> tuple[QueueName, ...]:
        """The queues that the worker claims from."""
        return tuple(QueueName(self.tenant, queue) for queue in self.queues)

    def record(
        self, *, now_ms: int, active: int = 0, paused: bool = False, draining: bool = False
    ) -> WorkerRecord:
        """The worker as it is announced to the store."""
        return WorkerRecord(
            name=self.worker,
            host=self.host,
            pid=self.pid,
            queues=self.queue_names,
            concurrency=self.concurrency,
            active=active,
            paused=paused,
            draining=draining,
            started_ms=self.started_ms,
            seen_ms=now_ms,
            incarnation=self.incarnation,
        )

    def text(self) -> str:
        """The session as the worker carries it."""
        return base64.urlsafe_b64encode(_encode(self)).decode()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Session).decode


def new_session(
    worker: str,
    tenant: str,
    queues: tuple[str, ...],
    *,
    concurrency: int,
    host: str,
    pid: int,
    now_ms: int,
    incarnation: str | None = None,
) -> Session:
    """A session with checked values. InvalidJob names the value that is wrong.

    `incarnation` is that of the session that the worker continues.
    """
    if not queues:
        raise InvalidJob("queues is empty: name at least one queue that the worker takes jobs from")
    if len(queues) > MAX_QUEUES:
        raise InvalidJob(f"queues has {len(queues)} names: a worker has at most {MAX_QUEUES}")
    return Session(
        worker=check_worker(worker) if worker else made_name(),
        tenant=tenant,
        queues=tuple(dict.fromkeys(check_queue_name(queue, "queues") for queue in queues)),
        concurrency=check_int(concurrency or 1, "concurrency", low=1, high=MAX_CONCURRENCY),
        host=check_short_name(host, "host", _MAX_HOST) if host else "",
        pid=check_int(pid, "pid", high=MAX_COUNT),
        started_ms=now_ms,
        incarnation=incarnation or secrets.token_hex(8),
    )


def read_session(text: str, worker: str, tenant: str) -> Session:
    """The session that a call carries. InvalidJob if it is not that of the worker."""
    if len(text) > _MAX_TEXT:
        raise InvalidJob("session is not one that Register has returned: it is too long")
    session = _read(text)
    if worker and session.worker != worker:
        raise InvalidJob(f"the session belongs to worker {session.worker!r}, not to {worker!r}")
    if session.tenant != tenant:
        raise InvalidJob(f"the session belongs to another tenant than {tenant!r}: register again")
    return session


@lru_cache(maxsize=1024)
def _read(text: str) -> Session:
    """The session in this text, with every value checked again: a caller may have made it up."""
    try:
        given = _decode(base64.urlsafe_b64decode(text))
        check_tenant(given.tenant)
        return new_session(
            check_worker(given.worker),
            given.tenant,
            given.queues,
            concurrency=given.concurrency,
            host=given.host,
            pid=given.pid,
            now_ms=check_int(given.started_ms, "started_ms", high=MAX_EPOCH_MS),
            incarnation=check_short_name(given.incarnation, "incarnation", 64),
        )
    except (NotBase64, ValueError, msgspec.MsgspecError):
        raise InvalidJob("session is not one that Register has returned: register first") from None


def check_worker(name: str) -> str:
    """The name of a worker, if it can be one."""
    return check_short_name(name, "worker", MAX_WORKER_NAME)


def made_name() -> str:
    """A name that no other worker has."""
    return f"{socket.gethostname()[:64]}-{secrets.token_hex(6)}"
