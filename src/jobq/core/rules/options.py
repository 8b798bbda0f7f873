"""The options of a job, each stated once.

A row has an option's name, the field of `JobSpec` that stores it (its type and default are there),
its check, where it may be given, how stores keep it, where it goes and its words. Everything else
that knows options follows from the rows: it loops over them, or scripts/options.py writes it
between two marks and `make check` compares. CONTRIBUTING.md, "Adding an option", has the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import is_
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import astuple

from jobq.core.policies.retry import Retry
from jobq.core.records.jobs import (
    MAX_AFTER,
    ChildPolicy,
    Edge,
    JobKey,
    JobRecord,
    JobSpec,
    QueueName,
    RetryData,
    UniqueMode,
    UniqueSpec,
)
from jobq.core.values import checks
from jobq.core.values.checks import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_ID_LENGTH,
    MAX_MS,
    check_bool,
    check_choice,
    check_id,
    check_int,
)
from jobq.core.values.meta import check_meta
from jobq.errors import InvalidJob

# Checks of the fields of a new job that need more than `core.values.checks`.
#
# Each returns a plain value: the same object, if it is one.

MAX_CODEC = 128
"""Characters of the name of a codec. Two names of 63 characters make a pair."""
MAX_DELAYS = 1_000
"""Delays that one retry policy may list. Every lease of the job carries them."""
MAX_ORIGIN = checks.MAX_NAME_LENGTH + 1 + MAX_ID_LENGTH
"""Characters of the `origin` of a dead letter: queue, slash and id."""

_MODES = get_args(UniqueMode)


def check_queue(value: object, option: str = "queue") -> QueueName:
    """The full name of a queue."""
    if (
        type(value) is QueueName
        and type(value[0]) is type(value[1]) is str
        and _queue_is_known(value, option)
    ):
        return value
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidJob(f"{option}={checks.shown(value)} is not the name of a queue")
    tenant, queue = value
    return QueueName(checks.check_tenant(tenant), checks.check_queue_name(queue, option))


@lru_cache(maxsize=10_000)
def _queue_is_known(queue: QueueName, option: str) -> bool:
    checks.check_tenant(queue.tenant)
    checks.check_queue_name(queue.queue, option)
    return True


def check_codec(value: object) -> str:
    """The name of a codec."""
    return checks.check_short_name(value, "codec", MAX_CODEC)


def check_retry(retry: object) -> RetryData:
    """A retry policy."""
    if not isinstance(retry, RetryData):
        raise InvalidJob(f"retry={checks.shown(retry)} is not a retry policy")
    plain = RetryData(
        max_retries=check_int(retry.max_retries, "retry.max_retries", high=MAX_COUNT),
        base_ms=check_int(retry.base_ms, "retry.base_ms", high=MAX_MS),
        factor=checks.check_number(retry.factor, "retry.factor", low=1),
        cap_ms=check_int(retry.cap_ms, "retry.cap_ms", low=1, high=MAX_MS),
        jitter=checks.check_number(retry.jitter, "retry.jitter", high=1),
        delays_ms=None if retry.delays_ms is None else _delays(retry.delays_ms),
    )
    if plain.base_ms > plain.cap_ms:
        raise InvalidJob(
            f"retry.base_ms={plain.base_ms} is above cap_ms={plain.cap_ms}: raise the cap as well"
        )
    return retry if _is_same(retry, plain) else plain


def _is_same(one: RetryData | UniqueSpec, plain: RetryData | UniqueSpec) -> bool:
    """Whether the values of a record are those that a check returned, plain ones."""
    return type(one) is type(plain) and all(map(is_, astuple(one), astuple(plain)))


def _delays(value: object) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        raise InvalidJob(f"retry.delays_ms={checks.shown(value)} is not a list of delays")
    check_int(len(value), "the number of retry.delays_ms", low=1, high=MAX_DELAYS)
    plain = tuple(
        check_int(delay, f"retry.delays_ms[{n}]", high=MAX_MS) for n, delay in enumerate(value)
    )
    return value if type(value) is tuple and all(map(is_, value, plain)) else plain


def check_unique(value: object) -> UniqueSpec:
    """A unique lock."""
    if not isinstance(value, UniqueSpec):
        raise InvalidJob(f"unique={checks.shown(value)} is not a unique lock")
    mode = check_choice(value.mode, "unique.mode", _MODES)
    ttl_ms = value.ttl_ms
    if ttl_ms is not None:
        ttl_ms = check_int(ttl_ms, "unique.ttl_ms", low=1, high=MAX_MS)
    elif mode == "throttle":
        raise InvalidJob("unique.mode='throttle' needs unique.ttl_ms: how long the lock is held")
    lock = check_id(value.lock, "unique.lock")
    plain = UniqueSpec(lock=lock, mode=mode, ttl_ms=ttl_ms)  # type: ignore[arg-type]
    return value if _is_same(value, plain) else plain


def check_edges(value: object) -> tuple[Edge, ...]:
    """The jobs that a job waits for."""
    if not isinstance(value, (tuple, list)):
        raise InvalidJob(f"after={checks.shown(value)} is not a list of edges")
    check_int(len(value), "the number of jobs in after", high=MAX_AFTER)
    edges = tuple(map(_edge, value))
    same = type(value) is tuple and all(map(is_, edges, value))
    return value if same else edges  # type: ignore[return-value]  # the very same edges


def _edge(edge: object) -> Edge:
    if not isinstance(edge, Edge) or not isinstance(edge.job, JobKey):
        raise InvalidJob(f"after: {checks.shown(edge)} is not an edge to a job")
    (queue, id), data = edge.job, check_bool(edge.data, "after result")
    there, plain = check_queue(queue, "after queue"), check_id(id, "after id")
    same = there is queue and plain is id and type(edge) is Edge and type(edge.job) is JobKey
    return edge if same else Edge(JobKey(there, plain), data)


Kind = Literal[
    "text", "count", "flag", "choice", "span", "moment", "retry", "unique", "jobs", "meta"
]
"""What a value is. Each place converts values by kind: an option of a known kind needs no code
there. A span has milliseconds in the spec, and a moment milliseconds since 1970."""
When = Literal["put", "start", "end"]
"""When a Valkey server must look at an option: FLAG.at_put, at_start, at_end in lua/fields.lua."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    field: str
    """The field of a JobSpec. Empty: the option is not stored."""
    kind: Kind
    check: Callable[[Any], Any]
    """Returns the plain value of the field, or raises InvalidJob."""

    name: str = ""
    """As users write it. Empty: callers cannot give it."""
    type: str = ""
    """The annotation in JobOptions, if the kind does not say it."""
    parse: Callable[[Any], Any] | None = None
    """From a user's value to the field's. None: `check`."""
    queue: bool = True
    """May be one of Queue(defaults=…)."""
    cli: bool = True
    """May be given to `jq-ctl job submit`, as a flag and in a line of JSON."""
    flag: str = ""
    """The name of the flag, if it is not the option's."""
    column: bool = True
    """May be given by a column of a DataFrame, `_name`."""
    by_worker: bool = False
    """If the call does not give it, the task in the worker's code decides. A task's own value is
    never stored."""

    packed: int | None = None
    """Its place in the array that SQL stores keep in the column `options`. The next free one is
    that of the last field of StoredOptions plus 1. None: a column, a flag or a row of its own."""
    recorded: str | None = None
    """Its name among the options in a Valkey record. None: the record has it elsewhere."""
    when: tuple[When, ...] = ()
    """When a Valkey server must look at it."""
    lease: bool = False
    """The lease has it."""
    kept: bool = False
    """A debounced job that is replaced keeps its own. Otherwise it gets that of the new call."""
    letter: bool = False
    """The copy in the dead-letter queue has it."""

    help: str = ""
    """What it does, for `--help`, for editors and for the guide."""
    guide: str = ""
    """What the guide adds, in Markdown."""
    label: str = ""
    """Its title where jq-ctl and the dashboard show a job. Empty: they do not list it, or show it
    in a line of its own."""

    @property
    def default(self) -> Any:
        """The value of the field if the option is not given."""
        return getattr(_PLAIN, self.field) if self.field else None

    @property
    def of_call(self) -> bool:
        """Whether CallOptions has it. The other fields are those of the record itself."""
        return self.packed is not None and self.field not in JobRecord.__struct_fields__

    def of(self, record: JobRecord) -> Any:
        """Its value in the record of a job."""
        return getattr(record.options if self.of_call else record, self.field)


def _number(option: str, low: int, high: int) -> Callable[[Any], int]:
    return lambda value: check_int(value, option, low=low, high=high)


def _flag(option: str) -> Callable[[Any], bool]:
    return lambda value: check_bool(value, option)


_POLICIES = get_args(ChildPolicy)
_PLAIN = JobSpec(queue=QueueName("", ""), id="", name="", payload=b"")

OPTIONS: tuple[Option, ...] = (
    Option(
        field="codec", kind="text",
        check=check_codec,
        recorded="codec", letter=True,
    ),
    Option(
        name="id", field="given_id", kind="text",
        check=_flag("given_id"), parse=check_id,
        queue=False, column=False,
        help="Id of the job, unique in its queue. A second job with the same id is not added.",
        guide="See [below](#ids).",
    ),
    Option(
        name="priority", field="priority", kind="count",
        check=checks.check_priority,
        recorded="priority", when=("put",), kept=True, letter=True,
        help="Higher runs first, from 0 to 2,097,151. Default: 0.",
        guide="First in, first out within one priority.",
    ),
    Option(
        name="lifo", field="lifo", kind="flag",
        check=_flag("lifo"),
        packed=0, recorded="lifo", when=("put",),
        help="Put the job before the others of its priority instead of after them.",
        label="In front",
    ),
    Option(
        name="delay", field="delay_ms", kind="span",
        check=_number("delay_ms", 0, MAX_MS), parse=checks.check_delay,
        packed=1,
        help="Start the job after this time.",
        label="Delay",
    ),
    Option(
        name="at", field="at_ms", kind="moment",
        check=_number("at_ms", 0, MAX_EPOCH_MS), parse=checks.check_at,
        queue=False,
        packed=2,
        help="Start the job at this time.",
        guide="It needs a time zone.",
    ),
    Option(
        name="ttl", field="ttl_ms", kind="span", type="Seconds | None",
        check=_number("ttl_ms", 1, MAX_MS), parse=checks.check_ttl,
        packed=3, recorded="ttl", when=("put", "start"),
        help="Fail the job as expired if it has not started within this time after it was due.",
        label="Start within",
    ),
    Option(
        name="result_ttl", field="result_ttl_ms", kind="span",
        check=_number("result_ttl_ms", 1, MAX_MS), parse=checks.check_result_ttl,
        packed=4, recorded="result_ttl", when=("end",),
        help="How long to keep the job's record after it ends. Default: the queue's retention.",
        label="Record kept for",
    ),
    Option(
        name="retry", field="retry", kind="retry", type="Retry | int", flag="max-retries",
        check=check_retry, parse=lambda value: Retry.of(value).data,
        by_worker=True,
        packed=5, recorded="retry", lease=True,
        help="Retries after failed runs. Default: as declared by the task.",
        guide="See [Retries](retries.md). The policy of a call is stored with the job, so it "
        "cannot contain callables.",
        label="Retries",
    ),
    Option(
        name="timeout", field="timeout_ms", kind="span", type="Seconds | None", flag="run-timeout",
        check=_number("timeout_ms", 0, MAX_MS), parse=checks.check_timeout,
        by_worker=True,
        packed=6, recorded="timeout", lease=True,
        help="Time limit of one run. Default: as declared by the task.",
        label="Timeout",
    ),
    Option(
        name="max_stalls", field="max_stalls", kind="count",
        check=checks.check_max_stalls,
        by_worker=True,
        packed=7, recorded="max_stalls",
        help="How often the job may lose its worker before it fails. Default: as declared by the "
        "task.",
        label="Stalls allowed",
    ),
    Option(
        name="key", field="key", kind="text",
        check=checks.check_key,
        queue=False,
        help="Key of the job, in a keyed queue.",
        guide="See [Keys and limits](keys-and-limits.md). In `@queue.task(…)`, the name of the "
        "parameter that holds the key.",
    ),
    Option(
        name="cost", field="cost", kind="count",
        check=checks.check_cost,
        packed=8, recorded="cost", when=("start",),
        help="How much of the queue's rate the job takes. Default: 1.",
        guide="See [Keys and limits](keys-and-limits.md).",
        label="Cost",
    ),
    Option(
        name="unique", field="unique", kind="unique", type="Unique | bool",
        check=check_unique,
        queue=False, column=False,
        packed=9,  # and 10 and 11: lock, mode and period are stored apart
        help="Add the job only if no other has the same arguments.",
        guide="See [Unique jobs](unique.md).",
        label="Unique",
    ),
    Option(
        name="after", field="after", kind="jobs", type="Sequence[Job[Any] | SyncJob[Any]]",
        check=check_edges,
        queue=False, cli=False, column=False,
        help="Jobs that must end before this one starts.",
        guide="See [Flows](flows.md).",
    ),
    Option(
        name="on_child_failure", field="on_child_failure", kind="choice",
        check=lambda value: check_choice(value, "on_child_failure", _POLICIES),
        cli=False, column=False,
        packed=12, recorded="policy", kept=True,
        help="What a failed child does to the job: fail, ignore or continue. Default: fail.",
        guide="See [Flows](flows.md).",
        label="If a child fails",
    ),
    Option(
        field="reserved", kind="flag",
        check=_flag("reserved"),
    ),
    Option(
        field="schedule", kind="text",
        check=lambda value: check_id(value, "schedule"),
        packed=13, recorded="schedule", when=("end",), kept=True,
    ),
    Option(
        field="origin", kind="text",
        check=lambda value: checks.check_short_name(value, "origin", MAX_ORIGIN),
        packed=14, recorded="origin", kept=True,
    ),
    Option(
        name="meta", field="meta", kind="meta",
        check=check_meta,
        packed=18, recorded="meta", lease=True, letter=True,
        help="Strings to store with the job.",
        guide="See [below](#meta).",
    ),
    Option(
        name="call_timeout", field="", kind="span",
        check=lambda value: checks.to_ms(value, "call_timeout"),
        cli=False, column=False,
        help="How long `task.call(…)` waits for the result. Default: 30 s.",
    ),
)  # fmt: skip
"""In the order of the fields of a JobSpec. New rows go before `call_timeout`, as `JobSpec` gets new
fields at its end: schedules store specs as arrays."""

FIELDS: tuple[Option, ...] = tuple(option for option in OPTIONS if option.field)
"""The rows that are fields of a spec: all behind queue, id, name and payload, in their order."""
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS if option.name}
"""The rows that callers can give, by name."""
APPLIED: tuple[Option, ...] = tuple(
    option for name, option in BY_NAME.items() if option.of_call or name in ("priority", "key")
)
"""The rows of AppliedOptions."""
LETTER: tuple[Option, ...] = tuple(option for option in FIELDS if option.letter)
"""The rows that the copy in a dead-letter queue keeps, besides name and arguments."""
KEPT: tuple[Option, ...] = tuple(option for option in FIELDS if option.kept)
"""The rows that a replaced job keeps, besides its id, name and key (core/rules/locks.py)."""


class TaskOption(msgspec.Struct, frozen=True, kw_only=True):
    """An option of `@queue.task(…)` that no job has: it says how workers run the task."""

    name: str
    type: str
    help: str
    guide: str = ""


TASK_OPTIONS: tuple[TaskOption, ...] = (
    TaskOption(
        name="name", type="str",
        help="Name of the task. Default: that of the function.",
    ),
    TaskOption(
        name="aliases", type="Sequence[str] | Mapping[str, Upgrader | None]",
        help="Former names of the task.",
        guide="See [above](#renaming-and-changing-a-task).",
    ),
    TaskOption(
        name="schedule", type="Cron | Every | None",
        help="When the task runs by itself.",
        guide="See [Schedules](schedules.md).",
    ),
    TaskOption(
        name="executor", type="ExecutorName",
        help="Where the task runs: `inline` (async functions), `thread` (plain ones), `process`.",
        guide="See [Executors](executors.md).",
    ),
    TaskOption(
        name="grace", type="Seconds",
        help="How long a run may take to stop when it is asked to. Default: the worker's.",
    ),
    TaskOption(
        name="permissions", type="Permissions",
        help="What the task may do in a child process.",
        guide="See [Permissions](permissions.md).",
    ),
)  # fmt: skip
