"""Every option is in every place that its row in core/rules/options.py names.

A forgotten place fails by the name of the option. What stores do with options is tested in
jobq_conformance/test_options.py, wrong values at every door in tests/doors, and the copy to another
store in tests/store_copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from jobq import AppliedOptions, ConfigError, InvalidJob, Queue, Retry, TaskOptions, Unique
from jobq.access.principal import ANYONE
from jobq.cli.ctl import main
from jobq.core.records.jobs import JobKey, JobRecord, JobSpec, QueueName
from jobq.core.records.queues import ScheduleRecord, ScheduleSpec
from jobq.core.rules.options import APPLIED, BY_NAME, FIELDS, TASK_OPTIONS, Option
from jobq.rpc import convert, convert_queues
from jobq.rpc.v1 import common_pb2
from jobq.stores import open_store
from jobq.web.data.job import job as page_of
from jobq.web.data.view import View
from jobq_conformance.kit import FakeClock
from jobq_conformance.spec_values import example
from scripts.options import PARTS, written

ROOT = Path(__file__).parents[2]
STORED = [option for option in BY_NAME.values() if option.field and option.kind != "jobs"]


def named(options: Iterable[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("option", options, ids=lambda option: option.name)


def given(option: Option) -> Any:
    """An example as a caller of the API gives it."""
    if option.name == "id":
        return "mine"
    match option.kind:
        case "span":
            return timedelta(milliseconds=example(option))
        case "moment":
            return datetime.fromtimestamp(example(option) / 1000, UTC)
        case "retry":
            return Retry(2)
        case "unique":
            return Unique("n")
        case _:
            return example(option)


def is_stored(option: Option, record: JobRecord) -> bool:
    """Whether a record has what `given` has given."""
    value = option.of(record)
    if option.kind == "retry":
        return bool(value.max_retries == 2)
    if option.kind == "unique":
        return value is not None
    return bool(value == (True if option.name == "id" else example(option)))


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue("work", f"memory://{uuid4().hex}") as opened:
        yield opened


async def _record(queue: Queue, id: str) -> JobRecord:
    async with open_store(queue.url) as store:
        (record,) = await store.get([JobKey(queue.qname, id)])
    assert record is not None
    return record


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


def test_every_field_of_a_spec_has_a_row_in_its_place() -> None:
    assert [option.field for option in FIELDS] == list(JobSpec.__struct_fields__[4:])


def test_what_follows_from_the_table_is_written() -> None:
    for part in PARTS:
        assert any(f"begin scripts/options.py: {part}" in _text(name) for name in _files())
    for name in _files():
        assert written(_text(name)) == _text(name), f"{name}: run python scripts/options.py"


def _files() -> tuple[str, ...]:
    from scripts.options import FILES

    return FILES


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@named(BY_NAME.values())
def test_an_option_has_words_for_readers(option: Option) -> None:
    assert re.fullmatch(r"[A-Z].*\.", option.help)
    assert f"| `{option.name}` | {option.help}" in _text("docs/guide/tasks.md")
    assert option.name in TaskOptions.__annotations__


def test_the_guide_names_the_options_that_no_column_gives() -> None:
    page = " ".join(_text("docs/guide/dataframes.md").split())
    without = [
        f"`{name}`" for name, option in BY_NAME.items() if not option.column and name != "id"
    ]
    assert f"all options except {', '.join(without[:-1])} and {without[-1]};" in page


# ── the public API ────────────────────────────────────────────────────────────────────────────────


@named(STORED)
async def test_a_call_stores_its_option(queue: Queue, option: Option) -> None:
    job = await queue.task_by_name("step").options(**{option.name: given(option)}).enqueue(n=1)
    assert is_stored(option, await _record(queue, job.id))


@named(STORED)
async def test_a_task_gives_its_option_to_its_calls(queue: Queue, option: Option) -> None:
    if option.name == "key":
        return  # the name of a parameter

    @queue.task(**{option.name: given(option)})
    async def step(n: int) -> None: ...

    job = await step.enqueue(1)
    stored = is_stored(option, await _record(queue, job.id)) if not option.by_worker else False
    assert stored is not option.by_worker


@named(BY_NAME.values())
def test_a_queue_takes_the_option_as_a_default_or_says_why_not(option: Option) -> None:
    value: Any = 3 if not option.field else [] if option.kind == "jobs" else given(option)
    if option.queue:
        Queue("work", defaults={option.name: value})  # type: ignore[arg-type]
    else:
        with pytest.raises(ConfigError, match=f"{option.name} is an option of a single job"):
            Queue("work", defaults={option.name: value})  # type: ignore[arg-type]


@named(APPLIED)
async def test_info_shows_the_option(queue: Queue, option: Option) -> None:
    task = queue.task_by_name("step")
    bare = (await (await task.enqueue(n=1)).info()).options
    if option.name == "key":
        queue = Queue("keyed", queue.url)
        task = queue.task_by_name("step")
    async with queue:
        shown = await task.options(**{option.name: given(option)}).enqueue(n=2)
        options = (await shown.info()).options
    assert isinstance(options, AppliedOptions)
    assert getattr(options, option.name) != getattr(bare, option.name)
    for other in APPLIED:
        if other is not option:
            assert getattr(options, other.name) == getattr(bare, other.name), other.name


@named([*BY_NAME.values(), *TASK_OPTIONS])
async def test_an_option_among_the_arguments_is_told_where_it_belongs(
    queue: Queue, option: Any
) -> None:
    @queue.task
    async def step() -> None: ...

    words = f"{option.name} is an option" if isinstance(option, Option) else "unexpected keyword"
    with pytest.raises(InvalidJob, match=words):
        await step.enqueue(**{option.name: 1})


# ── the command line ──────────────────────────────────────────────────────────────────────────────


def _ctl(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["--url", url, "job", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def _text_of(option: Option) -> list[str]:
    """The flag of an option with its example."""
    flag = f"--{option.flag or option.name.replace('_', '-')}"
    match option.kind:
        case "flag":
            return [flag]
        case "span":
            return [flag, f"{example(option)}ms"]
        case "moment":
            return [flag, given(option).strftime("%Y-%m-%dT%H:%M:%SZ")]
        case "retry":
            return [flag, "2"]
        case "unique":
            return [flag, "n"]
        case "meta":
            return [f"{flag}={name}={value}" for name, value in example(option).items()]
        case _:
            return [flag, "mine" if option.name == "id" else str(example(option))]


def _json_of(option: Option) -> Any:
    match option.kind:
        case "span":
            return example(option) / 1000
        case "moment":
            return given(option).isoformat()
        case "retry":
            return 2
        case "unique":
            return {"fields": ["n"]}
        case _:
            return given(option)


@named(STORED)
def test_jq_ctl_takes_the_option_and_shows_it(tmp_path: Path, option: Option) -> None:
    url, place = f"sqlite:///{tmp_path}/jobs.db", ("-q", "work", "-o", "json")
    flags = _text_of(option)
    if not option.cli:
        result = CliRunner().invoke(main, ["job", "submit", "step", *flags])
        assert "No such option" in result.output
        return
    first = json.loads(_ctl(url, "submit", "step", *place, "-a", "n=1", *flags))
    _shows(option, url, first, bare=_ctl(url, "submit", "step", "-q", "bare", "-o", "json"))
    file = tmp_path / "lines.jsonl"
    line = {"name": "step", "kwargs": {"n": 2}, "id": "second", option.name: _json_of(option)}
    file.write_text(json.dumps({**line, "id": "mine-too"} if option.name == "id" else line))
    _ctl(url, "submit", *place, "--lines", str(file))
    second = json.loads(
        _ctl(url, "status", "mine-too" if option.name == "id" else "second", *place)
    )
    if option.name == "meta":
        assert first["meta"] == second["meta"] == example(option)
    elif option in APPLIED:
        key = option.name if option.kind == "moment" else option.field
        one, other = first["options"][key], second["options"][key]
        assert (one == other) or option.kind in ("unique", "moment")
        assert other is not None


def _shows(option: Option, url: str, job: Mapping[str, Any], bare: str) -> None:
    if option not in APPLIED:
        return
    key = option.name if option.kind == "moment" else option.field
    assert job["options"][key] != json.loads(bare)["options"][key], option.name
    if option.label:
        assert option.label in _ctl(url, "status", job["id"])


# ── a DataFrame, a server, the dashboard ──────────────────────────────────────────────────────────


@named(STORED)
async def test_a_column_gives_the_option(queue: Queue, option: Option) -> None:
    pa = pytest.importorskip("pyarrow")
    from jobq.api.task import Call
    from jobq.pipeline.datasource.rows import Rows, check_columns

    if option.name == "id":
        return  # a column of its own kind
    if not option.column:
        with pytest.raises(ConfigError, match="is not an option of a job"):
            check_columns([f"_{option.name}"], [])
        return
    value = given(option) if option.kind == "moment" else _json_of(option)
    kind = pa.map_(pa.string(), pa.string()) if option.kind == "meta" else None
    column = pa.array([list(value.items()) if option.kind == "meta" else value], kind)
    batch = pa.record_batch({f"_{option.name}": column})
    (call,) = Rows(queue, {"task": "step"}, batch.schema.names).calls(batch)
    assert isinstance(call, Call), call
    (job,) = await queue.enqueue_many([call])
    assert is_stored(option, await _record(queue, job.id))


OF_SERVER = frozenset({"given_id", "reserved", "schedule", "origin"})
"""Fields that a server sets itself: a client that chooses an id has chosen it."""
OF_ONE_JOB = frozenset({"delay_ms", "at_ms", "after", "on_child_failure"})
"""Fields that the job of a schedule does not say."""


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: option.field)
def test_a_message_says_the_option(option: Option) -> None:
    sent = {field.name: field for field in common_pb2.NewJob.DESCRIPTOR.fields}
    assert (option.field in sent) is (option.field not in OF_SERVER), "proto/jobq/v1/common.proto"
    if option.field in OF_SERVER or option.kind == "jobs":
        return
    value: Any = example(option)
    if option.kind == "retry":
        value = common_pb2.Retry(max_retries=2)
    elif option.kind == "unique":
        value = common_pb2.Unique(lock="l")
    message = common_pb2.NewJob(queue="work", name="step", **{option.field: value})
    spec = convert.job_spec(message, "t", lambda: "a", max_payload=100)
    assert getattr(spec, option.field) != option.default
    if option.kind not in ("retry", "unique"):
        assert getattr(spec, option.field) == value
    if option.field not in OF_ONE_JOB:
        schedule = ScheduleSpec(queue=spec.queue, id="s", template=spec, every_ms=1)
        said = convert_queues.schedule(ScheduleRecord(spec=schedule, next_ms=1)).schedule.job
        said.queue = "work"
        again = convert.job_spec(said, "t", lambda: "a", max_payload=100)
        assert getattr(again, option.field) == getattr(spec, option.field)


@named([option for option in APPLIED if option.label])
async def test_the_dashboard_shows_the_option(option: Option) -> None:
    queue = QueueName("t", "work")
    async with open_store(f"memory://{uuid4().hex}", clock=FakeClock()) as store:
        view = View(store=store, principal=ANYONE, clock=FakeClock())
        spec = JobSpec(
            queue=queue, id="a", name="step", payload=b"[]", **{option.field: example(option)}
        )
        await store.put([spec])
        name = "max_retries" if option.kind == "retry" else option.name
        assert name in (await page_of(view, "t", "work", "a")).options
