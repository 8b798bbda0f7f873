"""Adding an option of a job, as CONTRIBUTING says it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adding.copy import Copy
from tests.adding.guide import section, steps
from tests.bugs.bug import Edit
from tests.bugs.tree import ROOT, copied

HEADING = "Adding an option"
STEPS = steps(HEADING)
EDITS = [step for step in STEPS if isinstance(step, Edit)]
COMMANDS = [step for step in STEPS if not isinstance(step, Edit)]
STORES = ("sqlite", "valkey", "postgres", "grpc")
CONTRACT = ("src/jobq_conformance/test_options.py",)
PLACES = ("tests/options", "tests/store_copy/test_job_moves.py", "tests/core/test_new_jobs.py")
DOORS = ("tests/doors",)
GENERATED = ("tests/api/test_public_names.py", "tests/golden")


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    with copied() as tree:
        yield Copy(tree, tmp_path / "log")


def test_the_steps_touch_at_most_six_files() -> None:
    assert len({edit.file for edit in EDITS}) <= 6


def test_an_option_is_added_by_these_steps(copy: Copy) -> None:
    copy.do(STEPS)
    copy.tests(*CONTRACT, *(word for store in STORES for word in ("--store", store)))
    copy.tests(*PLACES)
    copy.tests(*DOORS)
    copy.tests(*GENERATED)
    copy.python("scripts/options.py", "--check")
    copy.python("scripts/protos.py", "--check")
    assert "color: str\n" in (copy.tree.root / "src/jobq/api/options.py").read_text()
    assert "| `color` | Color of the job. |" in (copy.tree.root / "docs/guide/tasks.md").read_text(
        encoding="utf-8"
    )


ROW = "src/jobq/core/rules/options.py"
FORGOTTEN = {
    "the name in a Valkey record": (ROW, ' recorded="color",'),
    "the place in SQL stores": (ROW, "packed=21, "),
    "the lease": (ROW, ', lease=True,\n        help="Color'),
    "the words": (ROW, '        help="Color of the job.",\n'),
    "the message": ("proto/jobq/v1/common.proto", "  string color = 21;\n"),
    "its values": ("src/jobq_conformance/spec_values.py", '        "color": _ID,\n'),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_forgotten_place_is_found(copy: Copy, what: str) -> None:
    file, text = FORGOTTEN[what]
    copy.do(EDITS)
    copy.tree.edit(Edit(file, text, ',\n        help="Color' if what == "the lease" else ""))
    copy.do(COMMANDS[:2])  # not the recorded bytes
    stores = ("--store", "sqlite", "--store", "valkey")
    assert copy.fails(*CONTRACT, "tests/options", *stores)


def test_generated_sources_that_were_forgotten_are_found(copy: Copy) -> None:
    copy.do(EDITS)
    assert copy.fails("tests/options", "-k", "written")
    assert copy.fails("tests/golden")


def test_the_files_that_the_section_names_exist() -> None:
    named = re.findall(r"`((?:src|tests|scripts|proto|docs)/[\w./]+)`", section(HEADING))
    assert [name for name in named if not (ROOT / name).exists()] == []
