"""What a process remembers between transactions, so that it need not be read again."""

from __future__ import annotations

import msgspec


class Granted(msgspec.Struct, gc=False):
    """A lease that this process has granted: enough to complete the job without reading its row."""

    qid: int
    pk: int
    id: str
    life: int
    name: str
    key: str | None
    attempt: int
    failures: int
    stalls: int
    created_ms: int
    due_ms: int
    started_ms: int
    meta: dict[str, str] | None = None  # the part of its meta that its events carry
    watched: bool = False  # a caller waits for its end


class Beyond(msgspec.Struct, gc=False):
    """Ended jobs of a queue beyond the number that is kept (upkeep.retain)."""

    cap: int  # the number
    counted: int = 0  # ended jobs when this was last looked up
    newest: tuple[int, int] | None = None  # at_ms and pk of the newest one to remove; None: removed


class Memory:
    """Caches of one connection. Any of them may be emptied: then the rows are read again."""

    def __init__(self, incarnation: str = "") -> None:
        self.incarnation = incarnation  # part of every event's id
        self.granted: dict[str, Granted] = {}  # by token
        self.deputies: dict[int, float] = {}  # by queue: no deputies until then (monotonic clock)
        self.unreadable: set[int] = set()  # queues whose settings cannot be read, as was logged
        self.beyond: dict[tuple[int, int], Beyond] = {}  # by queue and state
        self.ticked_qid = 0  # the queue the last tick got to
        self.unvisited = 0  # queues that this round of ticks has not visited yet; 0: a new round
        self.swept_keys: dict[int, str] = {}  # by queue: the last key that a tick looked at
        self.swept: dict[str, tuple[int | str, ...]] = {}  # by sweep: the last key it looked at
