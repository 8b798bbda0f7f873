"""Adding an operation on all jobs that match, as CONTRIBUTING says it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adding.copy import Copy
from tests.adding.guide import steps
from tests.bugs.bug import Edit
from tests.bugs.tree import copied

STEPS = steps("Adding an operation")
EDITS = [step for step in STEPS if isinstance(step, Edit)]
ROW = '    "POST /api/v1/jobs/revive": _of("alter", "find"),\n'
FAMILIES = ("tests/operations", "tests/web/test_roles.py", "tests/web/test_api.py")


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    with copied() as tree:
        yield Copy(tree, tmp_path / "log")


def test_the_steps_touch_at_most_three_files_besides_the_changelog() -> None:
    assert len({edit.file for edit in EDITS} - {"CHANGELOG.md"}) <= 3


def test_an_operation_is_added_by_these_steps(copy: Copy) -> None:
    copy.do(STEPS)
    copy.tests(*FAMILIES)
    copy.python("scripts/access_doc.py", "--check")
    assert "jobs/revive" in (copy.tree.root / "docs/guide/access.md").read_text(encoding="utf-8")


def test_an_operation_that_nobody_may_do_is_found(copy: Copy) -> None:
    copy.do(EDITS)
    copy.tree.edit(Edit("src/jobq/access/table.py", ROW, ""))
    assert copy.fails("tests/operations")


def test_a_page_of_the_guide_that_was_forgotten_is_found(copy: Copy) -> None:
    copy.do(EDITS)
    with pytest.raises(AssertionError, match="access_doc"):
        copy.python("scripts/access_doc.py", "--check")
