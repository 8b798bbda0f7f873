"""Adding a field to an event, as CONTRIBUTING says it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adding import versions
from tests.adding.copy import Copy
from tests.adding.guide import section, steps
from tests.bugs.bug import Edit
from tests.bugs.tree import ROOT, copied

HEADING = "Adding a field to an event"
STEPS = steps(HEADING)
EDITS = [step for step in STEPS if isinstance(step, Edit)]
SOURCES = [edit for edit in EDITS if edit.file.startswith("src/jobq/")]
STORES = ("sqlite", "valkey", "postgres", "grpc")
CONTRACT = ("src/jobq_conformance/test_events.py", "-k", "priority")
FORMATS = ("tests/events",)
GENERATED = (
    "tests/scripts/test_event_schemas.py",
    "tests/api/test_public_names.py",
    "tests/stores/valkey/test_library.py",
    "tests/pipeline/test_report.py::test_the_guide_documents_every_table",
)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    with copied() as tree:
        yield Copy(tree, tmp_path / "log")


def test_the_steps_touch_at_most_four_places_beside_the_test() -> None:
    assert len({edit.file for edit in EDITS if "jobq_conformance" not in edit.file}) <= 4


def test_a_field_is_added_by_these_steps(copy: Copy, tmp_path: Path) -> None:
    copy.do(STEPS)
    copy.tests(*CONTRACT, *(word for store in STORES for word in ("--store", store)))
    copy.tests(*FORMATS)
    copy.tests(*GENERATED)
    copy.python("scripts/protos.py", "--check")
    copy.tests("tests/web/test_log.py", "tests/web/test_api.py")
    assert "priority: int | None = None" in (copy.tree.root / "src/jobq/api/info.py").read_text()
    assert (
        "priority: int | None = None" in (copy.tree.root / "src/jobq/web/data/log.py").read_text()
    )

    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    versions.write(old)
    copy.python("-m", "tests.adding.versions", "read", str(old))
    copy.python("-m", "tests.adding.versions", "write", str(new))
    assert b'"priority":' in (new / "line").read_bytes()
    versions.read(new)


@pytest.mark.parametrize("forgotten", SOURCES, ids=lambda edit: Path(edit.file).name)
def test_a_forgotten_place_is_found(copy: Copy, forgotten: Edit) -> None:
    copy.do(step for step in STEPS if step != forgotten)
    assert copy.fails(*CONTRACT, "--store", "sqlite", "--store", "valkey")


def test_generated_sources_that_were_forgotten_are_found(copy: Copy) -> None:
    copy.do(EDITS)
    assert copy.fails("tests/scripts/test_event_schemas.py")
    assert copy.fails("tests/events")
    assert copy.fails("tests/stores/valkey/test_library.py")


def test_the_files_that_the_section_names_exist() -> None:
    named = re.findall(r"`((?:src|tests|scripts|proto|docs|schemas)/[\w./]+)`", section(HEADING))
    assert [name for name in named if not (ROOT / name).exists()] == []
