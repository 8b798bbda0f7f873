"""scripts/protos.py finds what would break clients of the last release."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from scripts import protos

BEFORE = """
message Job { string id = 1; int32 priority = 2; oneof kind { string a = 3; string b = 4; } }
message Old { reserved 5; reserved "gone"; string kept = 1; }
enum Mode { PLAIN = 0; KEYED = 1; }
service Jobs { rpc Get(Job) returns (Job); rpc Watch(Job) returns (stream Job); }
"""


def described(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FileDescriptorSet:
    """The descriptors of a file with this text."""
    monkeypatch.setattr(protos, "PROTO", folder)
    path = folder / "x.proto"
    path.write_text(f'syntax = "proto3";\npackage x;\n{text}')
    return protos.described([path])


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("string id = 1;", "string name = 1;", "is name now"),
        ("string id = 1;", "string id = 7;", "was removed"),
        ("string id = 1;", "", "was removed"),
        ("string id = 1;", "reserved 1;", "was removed"),
        ("string id = 1;", "bytes id = 1;", "another type"),
        ("string id = 1;", "repeated string id = 1;", "another type"),
        ("string id = 1;", "optional string id = 1;", "another type"),
        ("oneof kind { string a = 3; string b = 4; }", "string a = 3; string b = 4;", "oneof"),
        ("reserved 5;", "string back = 5;", "was reserved"),
        ('reserved "gone";', "string gone = 6;", "was reserved"),
        ("message Old {", "message New {", "message x.Old is gone"),
        ("KEYED = 1;", "KEYED = 2;", "x.Mode.KEYED"),
        ("rpc Get(Job) returns (Job);", "", "x.Jobs.Get is gone"),
        ("rpc Get(Job) returns (Job);", "rpc Get(Old) returns (Job);", "something else"),
        ("returns (stream Job)", "returns (Job)", "something else"),
        ("service Jobs", "service Others", "service x.Jobs is gone"),
    ],
)
def test_a_change_that_breaks_clients_is_found(
    old: str, new: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert old in BEFORE
    released = described(BEFORE, tmp_path, monkeypatch)
    current = described(BEFORE.replace(old, new), tmp_path, monkeypatch)
    problems = protos.breaks(released, current)
    assert any(found in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("string id = 1;", "string id = 1; string more = 9;"),
        ("string id = 1;", 'reserved 1; reserved "id";'),
        ("KEYED = 1;", "KEYED = 1; NEW = 2;"),
        ("rpc Get", "rpc Put(Job) returns (Job); rpc Get"),
        ("message Old", "message More {} message Old"),
    ],
)
def test_a_change_that_breaks_nobody_passes(
    old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = described(BEFORE, tmp_path, monkeypatch)
    current = described(BEFORE.replace(old, new, 1), tmp_path, monkeypatch)
    assert protos.breaks(released, current) == []


def test_generated_code_that_is_out_of_step_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protos, "CODE", tmp_path)
    (tmp_path / "same_pb2.py").write_text("same")
    (tmp_path / "other_pb2.py").write_text("old")
    (tmp_path / "left_pb2.py").write_text("left")
    found = list(
        protos._out_of_step({"same_pb2.py": "same", "other_pb2.py": "new", "new_pb2.py": ""})
    )
    assert [Path(problem.split(":")[0]).name for problem in found] == [
        "left_pb2.py",
        "new_pb2.py",
        "other_pb2.py",
    ]
