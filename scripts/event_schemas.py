"""Write schemas/ from core/wire.py: an event as JSON Schema and as Avro.

python scripts/event_schemas.py           write the files; refuses changes that break consumers
python scripts/event_schemas.py --check   exit 1 if the files are not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from jobq.core.marks import MARK
from jobq.core.states import Kind, QueueKind, State
from jobq.core.wire import GAP, VERSION, Line

FOLDER = Path(__file__).resolve().parent.parent / "schemas"
JSON_FILE = FOLDER / f"event.v{VERSION}.schema.json"
AVRO_FILE = FOLDER / f"event.v{VERSION}.avsc"

_MEANINGS = {
    "v": "Version of the schema.",
    "id": "Never used for another event. Drop an event whose id you have seen.",
    "number": "Number in the shard of the queue's log, from 1 without gaps. Absent or 0: jobq 0.1.",
    "shard": "Partition of a partitioned queue, otherwise 0.",
    "kind": "What happened. Ignore kinds that you do not know.",
    "at_ms": "When it happened, by the store's clock.",
    "tenant": "The tenant.",
    "queue": "The queue.",
    "job": "The job's id. Empty for an operation on a queue, a gap and a mark.",
    "life": "How often the job was started over.",
    "name": "The task.",
    "key": "The concurrency key.",
    "attempt": "Runs started so far.",
    "failures": "Runs of this life that failed.",
    "stalls": "Runs of this life whose lease was lost.",
    "state": "The job's state after the event. Absent without a job.",
    "previous": "The job's state before the event. Absent for accepted, and without a job.",
    "worker": "The worker that made the call; for stalled, the one that noticed.",
    "actor": "Who gave the command.",
    "reason": "Why the job failed or was cancelled, or what was done to the queue.",
    "error": "Type and message of the error.",
    "fingerprint": "Equal for errors with the same cause.",
    "created_ms": "When the job was accepted.",
    "due_ms": "When the job was or is due.",
    "started_ms": "When the latest run started.",
    "finished_ms": "When the job ended.",
    "meta": "The names of the job's meta that Queue(event_meta=…) allows.",
}


def kinds() -> list[str]:
    """All kinds that this version of jobq writes."""
    return [*(kind.value for kind in Kind), *(kind.value for kind in QueueKind), GAP, MARK]


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a line."""
    fields = msgspec.structs.fields(Line)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:jobq:event:v{VERSION}",
        "title": "jobq event",
        "type": "object",
        "required": [field.name for field in fields if field.required],
        "properties": {field.name: _json_field(field.name, field.type) for field in fields},
        "additionalProperties": True,
    }


def _json_field(name: str, type_: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"description": _MEANINGS[name]}
    if name == "v":
        return made | {"const": VERSION}
    if name in ("state", "previous"):
        return made | {"enum": [state.value for state in State]}
    if name == "kind":
        return made | {"type": "string", "examples": kinds()}
    if _is_map(type_):
        return made | {"type": "object", "additionalProperties": {"type": "string"}}
    return made | ({"type": "integer", "minimum": 0} if _is_int(type_) else {"type": "string"})


def avro_schema() -> dict[str, Any]:
    """The Avro record of a line. Enums would refuse values of a later version: they are strings."""
    return {
        "type": "record",
        "name": "Event",
        "namespace": f"jobq.v{VERSION}",
        "doc": "An event of a jobq queue.",
        "fields": [
            _avro_field(field.name, field.type, field.required)
            for field in msgspec.structs.fields(Line)
        ],
    }


def _avro_field(name: str, type_: Any, required: bool) -> dict[str, Any]:
    long = name.endswith("_ms") or name == "number"
    plain: Any = ("long" if long else "int") if _is_int(type_) else "string"
    if _is_map(type_):
        plain = {"type": "map", "values": "string"}
    made: dict[str, Any] = {"name": name, "doc": _MEANINGS[name]}
    return made | ({"type": plain} if required else {"type": ["null", plain], "default": None})


def _is_int(type_: Any) -> bool:
    return "int" in str(type_)


def _is_map(type_: Any) -> bool:
    return "dict" in str(type_)


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
    return {
        path: json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for path, schema in ((JSON_FILE, json_schema()), (AVRO_FILE, avro_schema()))
    }


def main(arguments: list[str]) -> int:
    """Write or check the files. Returns the exit code."""
    if "--check" in arguments:
        old = [
            str(path.relative_to(FOLDER.parent))
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
