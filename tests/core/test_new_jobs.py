"""The one check of new jobs: what it refuses, and what it makes plain."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import fields, replace

from jobq.core.records.jobs import (
    Edge,
    JobKey,
    JobSpec,
    QueueName,
    RetryData,
    UniqueSpec,
)
from jobq.core.rules.new_jobs import (
    Checked,
    check_command,
    check_spec,
    check_specs,
    has_no_options,
)
from jobq.core.rules.waits import Children, child_note
from jobq.core.values.checks import MAX_ID_LENGTH
from jobq.errors import InvalidJob
from jobq_conformance.spec_values import (
    Case,
    Data,
    Level,
    Map,
    Number,
    Text,
    Word,
    base,
    cases,
    with_value,
)

QUEUE = QueueName("t", "work")
PLAIN = JobSpec(queue=QUEUE, id="a", name="step", payload=b"[[],{}]")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("retry.factor", math.nan, "retry.factor=nan is not a number"),
        ("retry.jitter", math.inf, "retry.jitter=inf is not a number"),
        ("retry.base_ms", 3_600_001, "retry.base_ms=3600001 is above cap_ms=3600000"),
        ("retry.delays_ms", (), "the number of retry.delays_ms=0 is out of range"),
        ("priority", True, "priority=True is not a whole number"),
        ("priority", 1.0, r"priority=1\.0 is not a whole number"),
        ("at_ms", -1, "at_ms=-1 is out of range"),
        ("ttl_ms", 0, "ttl_ms=0 is out of range"),
        ("result_ttl_ms", 0, "result_ttl_ms=0 is out of range"),
        ("lifo", 1, "lifo=1 is neither True nor False"),
        ("codec", "", "codec='' is empty"),
        ("meta", {"m": "\ud800"}, "cannot be encoded as UTF-8"),
        ("id", "a\ud800", r"has '\\ud800' at position 1"),
        ("after.job.id", "itself", r"job 'a' \(step\) waits for itself"),
        ("after.job.queue.tenant", "elsewhere", "waits for a job of another tenant: 'there'"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(field: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        check_spec(with_value(base(QUEUE, "a", field), Case(field, value)))


@pytest.mark.parametrize(
    ("field", "value", "plain"),
    [
        ("id", Text("x"), "x"),
        ("name", Word.X, "x"),
        ("payload", Data(b"x"), b"x"),
        ("payload", bytearray(b"x"), b"x"),
        ("priority", Level.FIVE, 5),
        ("cost", Number(5), 5),
        ("key", 7, "7"),
        ("key", Level.FIVE, "5"),
        ("meta", Map({Text("m"): Text("v")}), {"m": "v"}),
        ("meta", {}, None),
        ("unique.mode", Text("debounce"), "debounce"),
        ("retry.factor", Level.FIVE, 5.0),
        ("retry.delays_ms", [Level.ONE], (1,)),
        ("queue", ("t", Text("q")), QueueName("t", "q")),
    ],
)
def test_a_value_of_a_subclass_becomes_a_plain_one(field: str, value: Any, plain: Any) -> None:
    found: Any = check_spec(with_value(base(QUEUE, "a", field), Case(field, value)))
    for name in field.split("."):
        found = getattr(found, name)
    assert found == plain
    assert type(found) is type(plain)
    if isinstance(found, (dict, tuple)):
        items = [*found, *found.values()] if isinstance(found, dict) else found
        assert {type(each) for each in items} <= {str, int}


def test_a_plain_spec_is_returned_as_it_is() -> None:
    full = replace(
        PLAIN,
        priority=3,
        retry=RetryData(delays_ms=(1, 2)),
        unique=UniqueSpec(lock="l"),
        after=(Edge(JobKey(QUEUE, "there")),),
    )
    for spec in (PLAIN, full):
        assert check_spec(spec) is spec
        assert check_specs([spec])[0] is spec


def test_an_option_of_any_field_is_seen() -> None:
    """`has_no_options` is written out: each field must be in it, whatever the type of its value."""
    assert has_no_options(PLAIN)
    for field in fields(JobSpec)[4:]:
        value: Any
        for value in (True, 0.0, 1.0, Number(0), Number(1), Text("json"), Text("fail"), "x", []):
            same = type(value) is type(field.default) and value == field.default
            assert has_no_options(replace(PLAIN, **{field.name: value})) is same, field.name


def test_a_batch_is_checked_as_its_jobs_are() -> None:
    """Also beside others, whose queue, name and options a job shares."""
    for n, case in enumerate(cases()):
        spec = with_value(base(QUEUE, f"j{n}", case.field), case)
        try:
            expected: JobSpec | str = check_spec(spec)
        except InvalidJob as error:
            expected = str(error)
        beside = base(QUEUE, "beside", case.field)
        for batch in ([beside, spec], [spec, spec], [PLAIN, beside, spec]):
            try:
                found: JobSpec | str = check_specs(batch)[-1]
            except InvalidJob as error:
                found = str(error)
            assert found == expected, case


def test_specs_are_checked_once() -> None:
    checked = check_specs([PLAIN])
    assert type(checked) is Checked
    assert check_specs(checked) is checked


def test_a_note_about_a_child_is_no_signal_of_a_user() -> None:
    """A running job notes its children, also those of the step with the longest name."""
    lease: Any = SimpleNamespace(inputs=(), signals=(), queue=QUEUE)
    label = Children(lease).next("%" * MAX_ID_LENGTH)
    note = child_note(JobKey(QUEUE, "a"), label, JobKey(QUEUE, "b"))
    assert check_command(note) == note
    with pytest.raises(InvalidJob, match="reserved"):
        check_command(replace(note, name="$jobq.other"))
