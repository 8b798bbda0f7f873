"""Notifies handles, also in other processes of the machine, that they should look again.

A mailbox is a loopback UDP port, or just a number for memory://. A notice goes to it by a call in
the same process, by a datagram to another one. Datagrams can be lost, and any local program can
send one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Sequence

import msgspec

from jobq.stores.relational.mailbox import Mailbox, Notice

_LONGEST = 2048
"""Bytes of the longest datagram that is read."""
_numbers = itertools.count(-1, -1)


class LocalMailbox(Mailbox):
    """The mailbox of a handle of this machine. Its address is a port and the process."""

    def __init__(self, *, across_processes: bool) -> None:
        self._socket: socket.socket | None = None
        self.port = next(_numbers)
        if across_processes:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(("127.0.0.1", 0))
            self.port = self._socket.getsockname()[1]
        super().__init__((self.port, os.getpid()))
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._readable)

    def close(self) -> None:
        """Receive no more notices."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(_LONGEST)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            with contextlib.suppress(msgspec.DecodeError):
                self.receive(msgspec.msgpack.decode(data, type=Notice))


class Post:
    """Sends the notices of one process: to its own mailboxes by a call, to others by a datagram."""

    def __init__(self) -> None:
        self.mailboxes: dict[int, LocalMailbox] = {}
        self._socket: socket.socket | None = None

    def send(self, notices: Sequence[Notice]) -> None:
        """Send notices. A handle that misses one looks again by itself, later."""
        for notice in notices:
            port = notice.address[0]
            assert isinstance(port, int)
            mailbox = self.mailboxes.get(port)
            if mailbox is not None:
                mailbox.deliver(notice)
            elif port > 0:
                if self._socket is None:
                    self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    self._socket.setblocking(False)
                with contextlib.suppress(OSError):
                    self._socket.sendto(msgspec.msgpack.encode(notice), ("127.0.0.1", port))

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def alive(pid: int) -> bool:
    """Whether a process of this machine exists; True if that is unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
