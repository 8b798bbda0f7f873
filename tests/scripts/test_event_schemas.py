"""schemas/ describes the events that stores really write, and cannot change in a breaking way."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from jobq import Queue, Reject, Worker
from jobq.core.records import wire
from jobq.core.records.jobs import QueueName
from jobq.stores import open_store
from scripts.event_schemas import AVRO_FILE, JSON_FILE, breaks, files, json_schema, kinds

TYPES: dict[str, type] = {"string": str, "integer": int, "object": dict}


def problems(event: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """What is wrong with an event, by the parts of JSON Schema that ours uses."""
    found = [f"{name} is missing" for name in schema["required"] if name not in event]
    for name, value in event.items():
        rule = schema["properties"].get(name, {"enum": ["nothing: the field is unknown"]})
        right_type = "type" not in rule or type(value) is TYPES[rule["type"]]
        right_value = value in rule.get("enum", [rule.get("const", value)])
        if not (right_type and right_value):
            found.append(f"{name} is {value!r}")
    return found


async def test_the_events_of_a_store_are_valid(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    queue = Queue("schema", url, event_meta=("trace",))

    @queue.task
    async def work(fail: bool) -> None:
        if fail:
            raise Reject("no")

    async with queue, Worker(queue):
        for fail in (False, True):
            job = await work.options(key="k", meta={"trace": "t-1"}).enqueue(fail)
            await job.wait(timeout=20)
        await queue.as_actor("ann@example.com").pause()
    async with open_store(url) as store:
        found = (await store.read_events(QueueName("default", "schema"), after="0")).events
    lines = [json.loads(wire.encode(event)) for event in found]
    seen = {line["kind"] for line in lines}
    assert {"accepted", "started", "completed", "failed", "paused"} <= seen <= set(kinds())
    assert any("meta" in line for line in lines)
    assert [problems(line, json_schema()) for line in lines] == [[]] * len(lines)


def test_an_event_that_is_not_valid_is_recognised() -> None:
    schema = json_schema()
    line = json.loads(JSON_LINE)
    assert problems(line, schema) == []
    assert problems({**line, "v": 2}, schema) == ["v is 2"]
    assert problems({**line, "state": "asleep"}, schema) == ["state is 'asleep'"]
    assert problems({**line, "at_ms": "now"}, schema) == ["at_ms is 'now'"]
    del line["life"]
    assert problems(line, schema) == ["life is missing"]


JSON_LINE = (
    '{"v":1,"id":"a-1-0","kind":"started","at_ms":5,"tenant":"t","queue":"q","job":"j","life":0,'
    '"name":"n","attempt":1,"failures":0,"stalls":0,"state":"active","created_ms":5}'
)


def test_the_files_are_current() -> None:
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text


def test_avro_and_json_have_the_same_fields() -> None:
    avro = json.loads(AVRO_FILE.read_text(encoding="utf-8"))
    names = [field["name"] for field in avro["fields"]]
    assert names == list(wire.FIELDS) == list(json_schema()["properties"])
    required = [field["name"] for field in avro["fields"] if "default" not in field]
    assert required == json_schema()["required"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["properties"].pop("worker"), ["the field worker is gone"]),
        (
            lambda s: s["properties"]["at_ms"].update(type="string"),
            ["the field at_ms has other values"],
        ),
        (
            lambda s: s["properties"]["state"]["enum"].append("asleep"),
            ["the field state has other values"],
        ),
        (lambda s: s["required"].remove("life"), ["the field life may be absent"]),
        (lambda s: s["properties"].update(new={"type": "string"}), []),
        (lambda s: s["properties"]["kind"]["examples"].append("new"), []),
    ],
)
def test_only_changes_that_break_no_consumer_are_allowed(change: Any, expected: list[str]) -> None:
    old = json.loads(JSON_FILE.read_text(encoding="utf-8"))
    new = copy.deepcopy(old)
    change(new)
    assert breaks(old, new) == expected
