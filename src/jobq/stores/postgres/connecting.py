"""Connects to the server of an address, host by host, with a deadline for each."""

from __future__ import annotations

import time

from psycopg import pq

from jobq.stores.postgres.address import Address
from jobq.stores.postgres.link import Link, LinkLost, LinkStopped, one_line, ready


def connect(address: Address, stop: int, timeout: float) -> Link:
    """Connect to the first server of the address that accepts. LinkLost says why none does."""
    problems = []
    attempts = list(address.attempts())
    for conninfo in attempts:
        deadline = time.monotonic() + timeout / len(attempts)
        try:
            return _connect(conninfo, stop, deadline, pooled=not address.listen)
        except LinkStopped:
            raise
        except LinkLost as e:
            problems.append(str(e))
    raise LinkLost("; ".join(problems))


def _connect(conninfo: bytes, stop: int, deadline: float, *, pooled: bool) -> Link:
    pgconn = pq.PGconn.connect_start(conninfo)
    state = pq.PollingStatus.WRITING
    try:
        while pgconn.status != pq.ConnStatus.BAD and state != pq.PollingStatus.OK:
            reading = state == pq.PollingStatus.READING
            left = deadline - time.monotonic()
            if not ready(pgconn.socket, reading, left, stop):
                where = pgconn.host.decode() or "the server"
                raise LinkLost(f"{where} did not accept a connection in time")
            state = pq.PollingStatus(pgconn.connect_poll())
            if state == pq.PollingStatus.FAILED:
                break
        if pgconn.status != pq.ConnStatus.OK:
            raise LinkLost(one_line(pgconn.get_error_message()))
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()
        # libpq prints notices of the server to stderr; jobq has no use for them.
        pgconn.notice_handler = lambda _: None
    except BaseException:
        pgconn.finish()
        raise
    link = Link(pgconn, stop, pooled=pooled)
    link.deadline = deadline
    return link
