"""Write what follows from the fields of an event, which core/records/events.py defines.

python scripts/event_schemas.py           write the files; refuses changes that break consumers
python scripts/event_schemas.py --check   exit 1 if the files are not up to date

The files are the schemas of a line as JSON Schema and as Avro, and parts of others: the message of
a jq-server, the class of the public API, the dashboard's JSON, and the guide's table of events.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

from jobq.core.records.events import FIELDS, Field
from jobq.core.records.marks import MARK
from jobq.core.records.states import Kind, QueueKind, State
from jobq.core.records.wire import GAP, VERSION
from jobq.pipeline import tables

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "schemas"
JSON_FILE = FOLDER / f"event.v{VERSION}.schema.json"
AVRO_FILE = FOLDER / f"event.v{VERSION}.avsc"
PROTO_FILE = ROOT / "proto" / "jobq" / "v1" / "jobs.proto"
API_FILE = ROOT / "src" / "jobq" / "api" / "info.py"
WEB_FILE = ROOT / "src" / "jobq" / "web" / "data" / "log.py"
GUIDE_FILE = ROOT / "docs" / "guide" / "lake-tables.md"

_VERSION_MEANS = "Version of the schema."


def kinds() -> list[str]:
    """All kinds that this version of jobq writes."""
    return [*(kind.value for kind in Kind), *(kind.value for kind in QueueKind), GAP, MARK]


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a line."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:jobq:event:v{VERSION}",
        "title": "jobq event",
        "type": "object",
        "required": ["v", *(field.name for field in FIELDS if field.required)],
        "properties": {
            "v": {"description": _VERSION_MEANS, "const": VERSION},
            **{field.name: _json_field(field) for field in FIELDS},
        },
        "additionalProperties": True,
    }


def _json_field(field: Field) -> dict[str, Any]:
    made: dict[str, Any] = {"description": field.meaning}
    if field.type is State:
        return made | {"enum": [state.value for state in State]}
    if field.name == "kind":
        return made | {"type": "string", "examples": kinds()}
    if field.word == "map":
        return made | {"type": "object", "additionalProperties": {"type": "string"}}
    return made | (
        {"type": "string"} if field.word == "text" else {"type": "integer", "minimum": 0}
    )


_AVRO: dict[str, Any] = {
    "text": "string",
    "int": "int",
    "long": "long",
    "time": "long",
    "map": {"type": "map", "values": "string"},
}


def avro_schema() -> dict[str, Any]:
    """The Avro record of a line. Enums would refuse values of a later version: they are strings."""
    return {
        "type": "record",
        "name": "Event",
        "namespace": f"jobq.v{VERSION}",
        "doc": "An event of a jobq queue.",
        "fields": [
            {"name": "v", "doc": _VERSION_MEANS, "type": "int"},
            *map(_avro_field, FIELDS),
        ],
    }


def _avro_field(field: Field) -> dict[str, Any]:
    plain = _AVRO[field.word]
    made: dict[str, Any] = {"name": field.name, "doc": field.meaning}
    return made | (
        {"type": plain} if field.required else {"type": ["null", plain], "default": None}
    )


_PROTO = {
    "text": "string",
    "int": "int32",
    "long": "int64",
    "time": "int64",
    "map": "map<string, string>",
}


def message() -> str:
    """The fields of the protobuf message. Only a time tells apart that it has no value."""
    lines = []
    for field in sorted(FIELDS, key=lambda field: field.number):
        optional = "optional " if field.optional and field.word == "time" else ""
        lines += [f"  // {line}" for line in wrap(field.meaning, 95)]
        lines.append(f"  {optional}{_PROTO[field.word]} {field.name} = {field.number};")
    return "\n".join(lines) + "\n"


_PYTHON = {
    "text": "str",
    "int": "int",
    "long": "int",
    "time": "datetime",
    "map": "Mapping[str, str]",
}


_LATER = [field.name for field in FIELDS].index("meta") + 1
"""Fields from here on were added after the first release with `jobq.Event`: they have a default."""


def attributes() -> str:
    """The attributes of `jobq.Event`."""
    lines = []
    for field in FIELDS:
        type_ = _PYTHON[field.word]
        if field.type is State:
            type_ = "State"
        elif field.name == "kind":
            lines += _attribute("position: str", "Continues reading after the event.")
            type_ = 'Kind | QueueKind | Literal["gap"]'
        type_ += " = {}" if field.word == "map" else _optional(field)
        lines += _attribute(f"{field.shown}: {type_}", field.meaning)
    return "".join(lines)


_OFF_THE_WEB = {
    *("number", "shard", "tenant", "queue", "life", "failures", "stalls", "previous"),
    *("fingerprint", "created_ms", "due_ms", "started_ms", "finished_ms", "meta"),
}
"""What the dashboard does not tell of an event."""


def told() -> str:
    """The attributes of the dashboard's `LogEntry`."""
    return "".join(
        "".join(_attribute(f"{field.name}: {_TOLD[field.word]}{_optional(field)}", field.meaning))
        for field in FIELDS
        if field.name not in _OFF_THE_WEB
    )


_TOLD = {**_PYTHON, "time": "int"}


def _attribute(declared: str, meaning: str) -> list[str]:
    return [f"    {declared}\n", f'    """{meaning}"""\n']


def _optional(field: Field) -> str:
    return "" if not field.optional else " | None" + " = None" * (field in FIELDS[_LATER:])


def _with(path: Path, begins: str, ends: str, part: str) -> str:
    """The text of a file with this part between the two others."""
    before, found, after = path.read_text(encoding="utf-8").partition(begins)
    assert found, f"{path} has no place for the fields of an event"
    return before + begins + part + after[after.index(ends) :]


def breaks(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a consumer of the old JSON Schema would trip over in events of the new one."""
    found = []
    for name, before in old["properties"].items():
        after = new["properties"].get(name)
        if after is None:
            found.append(f"the field {name} is gone")
            continue
        rules = ("type", "const", "enum", "additionalProperties")
        if any(before.get(rule) != after.get(rule) for rule in rules):
            found.append(f"the field {name} has other values")
        if name in old["required"] and name not in new["required"]:
            found.append(f"the field {name} may be absent")
    return found


def files() -> dict[Path, str]:
    """The files and their contents."""
    schemas = ((JSON_FILE, json_schema()), (AVRO_FILE, avro_schema()))
    note = "from core/records/events.py by scripts/event_schemas.py\n"
    table = tables.as_markdown(tables.EVENTS)
    return {
        **{
            path: json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
            for path, schema in schemas
        },
        PROTO_FILE: _with(PROTO_FILE, f"  // {note}\n", "}\n", message()),
        API_FILE: _with(API_FILE, f"    # {note}", "\n\nclass ", attributes()),
        WEB_FILE: _with(WEB_FILE, f"    # {note}", "\n\ndef ", told()),
        GUIDE_FILE: _with(GUIDE_FILE, "### `events`\n", "\n### ", table.partition("\n")[2]),
    }


def main(arguments: list[str]) -> int:
    """Write or check the files. Returns the exit code."""
    if "--check" in arguments:
        old = [
            str(path.relative_to(ROOT))
            for path, text in files().items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        if old:
            print(f"{', '.join(old)}: not up to date; run python scripts/event_schemas.py")
        return 1 if old else 0
    if JSON_FILE.exists():
        broken = breaks(json.loads(JSON_FILE.read_text(encoding="utf-8")), json_schema())
        if broken:
            print(f"version {VERSION} cannot change like this: {'; '.join(broken)}")
            return 1
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
