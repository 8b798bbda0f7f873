"""Notices travel by NOTIFY: each handle has a channel of its own.

At most one statement per call sends notices, after the commit and without waiting for it. Notices
of a handle to itself need none. NOTIFY takes a lock of the whole server for the time of a commit,
so a call that wakes nobody sends none.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence

import msgspec

from jobq.stores.postgres.link import Link
from jobq.stores.relational.mailbox import Mailbox, Notice

LONGEST = 7_900
"""Bytes of one notification. PostgreSQL allows fewer than 8,000."""
NOTIFY = "SELECT pg_notify(m, n) FROM unnest($1::text[], $2::text[]) AS notices (m, n)"

_Fields = tuple[str, str, str, str, str | None]


_DEAF = "-"
"""What the address of a mailbox without a channel begins with."""
POLL_S = 1.0
"""Seconds between two polls of a handle without a channel (listen=no). Each costs an idle worker a
claim, and a caller that waits for a job a read."""


class ChannelMailbox(Mailbox):
    """Receives the notices of one handle: through a channel, or (listen=no) only its own."""

    def __init__(self, *, listens: bool = True) -> None:
        self.listens = listens
        self.channel = f"{'' if listens else _DEAF}jobq_{secrets.token_hex(8)}"
        super().__init__((self.channel,))
        self._polling: asyncio.TimerHandle | None = None
        if not listens:
            self._poll()

    def close(self) -> None:
        """Receive no more notices."""
        if self._polling is not None:
            self._polling.cancel()

    def _poll(self) -> None:
        """Without a channel, all who wait look again and again."""
        self.signal_all()
        self._polling = self._loop.call_later(POLL_S, self._poll)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the event loop. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def notified(self, payload: str) -> None:
        """Receive a notification. May be called from any thread."""
        # Any role that may connect to the database can send one.
        with contextlib.suppress(msgspec.MsgspecError, TypeError):
            for fields in msgspec.json.decode(payload, type=list[_Fields]):
                self.deliver(Notice(self.address, *fields))


def reachable(address: Sequence[object]) -> bool:
    """Whether notices reach the mailbox from other handles."""
    return not str(address[0]).startswith(_DEAF)


def send(link: Link, notices: Sequence[Notice]) -> None:
    """Queue the notices, as one statement."""
    mailboxes: list[str] = []
    payloads: list[str] = []
    for mailbox, fields in _grouped(notices).items():
        while fields and reachable((mailbox,)):
            payload, fields = _payload(fields)
            if payload is not None:
                mailboxes.append(mailbox)
                payloads.append(payload)
    if payloads:
        link.execute(NOTIFY, (mailboxes, payloads)).quiet = True


def _grouped(notices: Sequence[Notice]) -> dict[str, list[_Fields]]:
    by_mailbox: dict[str, list[_Fields]] = {}
    for notice in notices:
        by_mailbox.setdefault(str(notice.address[0]), []).append(notice[1:])
    return by_mailbox


def _payload(fields: list[_Fields]) -> tuple[str | None, list[_Fields]]:
    """As many notices as one notification can carry, and the rest.

    None: the first one alone is too long. Its receiver looks again by itself, later.
    """
    n = len(fields)
    while n:
        encoded = msgspec.json.encode(fields[:n])
        if len(encoded) <= LONGEST:
            return encoded.decode(), fields[n:]
        n //= 2
    return None, fields[1:]
