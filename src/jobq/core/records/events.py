"""Events as readers receive them from a store, and the one definition of their fields.

Every format of an event follows from the annotations of `EventRecord`: the items of the log, the
frames and messages of a jq-server, lines of JSON and their schemas, the tables of the pipeline,
`jobq.Event`, and what jq-ctl prints. CONTRIBUTING.md says how to add a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from jobq.core.records.jobs import QueueName
from jobq.core.records.states import Kind, QueueKind, State


class _Sent(NamedTuple):
    """How a field leaves the store. A new field is optional, and takes the next free numbers."""

    number: int
    """The field's number in protobuf."""
    meaning: str
    item: int | None = None
    """The field's place in an item of the log, if each event has its own value there."""
    long: bool = False
    """Whether the number may need more than 32 bits."""
    required: bool = True
    """Whether every line of JSON has the field, unless it can be None."""


class EventRecord(msgspec.Struct, frozen=True):
    """One transition of a job, or one operation on a queue, with all its data.

    The events of one job are in order. `kind="gap"` has no job: events before it were dropped
    unread. An operation on a queue (`QueueKind`) has no job either, and is in shard 0.

    `number` counts the events of one shard of the queue's log, from 1 without gaps, and continues
    after `obliterate`. Two ids under one number are a fork: the store lost its last writes and
    assigned the number again. 0 is an event from before events were numbered. `shard` is the
    partition of a partitioned queue, else 0. `actor` is who gave the command.

    A frame contains the fields in this order, so a new one goes to the end. Only readers of logs
    and lines leave out the keywords: with them, it takes ten times as long to make a record.
    """

    id: Annotated[
        str, _Sent(1, "Never used for another event. Drop an event whose id you have seen.")
    ]
    number: Annotated[
        int,
        _Sent(
            2,
            "Number in the shard of the queue's log, from 1 without gaps. Absent or 0: jobq 0.1.",
            long=True,
            required=False,
        ),
    ]
    shard: Annotated[
        int, _Sent(3, "Partition of a partitioned queue, otherwise 0.", required=False)
    ]
    position: str
    """Where the log is read on after the event. Only the store knows it, so it is not sent."""
    kind: Annotated[
        Kind | QueueKind | Literal["gap"],
        _Sent(4, "What happened. Ignore kinds that you do not know.", 0),
    ]
    at_ms: Annotated[int, _Sent(5, "When it happened, by the store's clock.")]
    queue: Annotated[QueueName, _Sent(7, "The queue.")]
    job: Annotated[
        str, _Sent(8, "The job's id. Empty for an operation on a queue, a gap and a mark.", 1)
    ]
    life: Annotated[int, _Sent(11, "How often the job was started over.", 2)]
    name: Annotated[str, _Sent(9, "The task.", 3)]
    key: Annotated[str | None, _Sent(10, "The concurrency key.", 4)]
    attempt: Annotated[int, _Sent(12, "Runs started so far.", 5)]
    failures: Annotated[int, _Sent(13, "Runs of this life that failed.", 6)]
    stalls: Annotated[int, _Sent(14, "Runs of this life whose lease was lost.", 7)]
    state: Annotated[
        State | None, _Sent(15, "The job's state after the event. Absent without a job.", 8)
    ]
    previous: Annotated[
        State | None,
        _Sent(16, "The job's state before the event. Absent for accepted, and without a job.", 9),
    ]
    worker: Annotated[
        str | None, _Sent(17, "The worker that made the call; for stalled, the one that noticed.")
    ]
    actor: Annotated[str | None, _Sent(18, "Who gave the command.", 17)]
    reason: Annotated[
        str | None,
        _Sent(19, "Why the job failed or was cancelled, or what was done to the queue.", 10),
    ]
    error: Annotated[str | None, _Sent(20, "Type and message of the error.", 11)]
    fingerprint: Annotated[str | None, _Sent(21, "Equal for errors with the same cause.", 12)]
    created_ms: Annotated[int, _Sent(22, "When the job was accepted.", 13)]
    due_ms: Annotated[int | None, _Sent(23, "When the job was or is due.", 14)]
    started_ms: Annotated[int | None, _Sent(24, "When the latest run started.", 15)]
    finished_ms: Annotated[int | None, _Sent(25, "When the job ended.", 16)]
    meta: Annotated[
        dict[str, str] | None,
        _Sent(26, "The names of the job's meta that Queue(event_meta=…) allows.", 18),
    ] = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a queue's log. `position` continues after it, even if `events` is empty."""

    events: tuple[EventRecord, ...]
    position: str


KIND_NAMED: dict[str, Kind | QueueKind | Literal["gap"]] = {
    **{kind.value: kind for kind in (*Kind, *QueueKind)},
    "gap": "gap",
}
"""The kinds of events by their names."""


class Field(NamedTuple):
    """A field of an event as it is sent: a `QueueName` is two of them."""

    name: str
    path: str
    """The attribute of an EventRecord."""
    type: Any
    """The type of its values in lines, without None."""
    optional: bool
    """Whether an event may have no value."""
    required: bool
    """Whether every line of JSON has it."""
    number: int
    long: bool
    meaning: str

    @property
    def word(self) -> Literal["text", "int", "long", "time", "map"]:
        """What formats with few types need to know of the type."""
        if self.type is not int:
            return "map" if self.type == dict[str, str] else "text"
        return "time" if self.name.endswith("_ms") else "long" if self.long else "int"

    @property
    def shown(self) -> str:
        """The name of the field where times are not in milliseconds: `at`, `created_at`."""
        if self.word != "time":
            return self.name
        return "at" if self.name == "at_ms" else f"{self.name.removesuffix('_ms')}_at"


_SENT: dict[str, tuple[Any, _Sent]] = {
    name: get_args(hint)
    for name, hint in get_type_hints(EventRecord, include_extras=True).items()
    if name != "position"
}
"""By name: the type of a field, and how it is sent."""


def _fields() -> Iterator[Field]:
    for name, (of, sent) in _SENT.items():
        if name == "queue":
            yield Field("tenant", "queue.tenant", str, False, True, 6, False, "The tenant.")
        optional = NoneType in get_args(of)
        yield Field(
            name,
            "queue.queue" if name == "queue" else name,
            str if name in ("kind", "queue") else get_args(of)[0] if optional else of,
            optional,
            sent.required and not optional,
            sent.number,
            sent.long,
            sent.meaning,
        )


FIELDS: tuple[Field, ...] = tuple(_fields())
"""What is sent of an event, in the order of a line."""
values: Any = attrgetter(*(field.path for field in FIELDS))
"""The values of these fields of an EventRecord, as a tuple."""

_BY_INDEX = {sent.item: name for name, (_, sent) in _SENT.items() if sent.item is not None}
ITEM: tuple[str, ...] = tuple(_BY_INDEX[index] for index in range(len(_BY_INDEX)))
"""The fields of an item of the log, in order (see `event_log`)."""
