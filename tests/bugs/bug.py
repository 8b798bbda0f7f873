"""What one row of the table says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["test", "test-all", "nightly"]
"""The first run that has the finding test: `make test`, `make test-all`, or the nightly one."""

CONFORMANCE = "src/jobq_conformance"
"""Where the contract suite is."""


@dataclass(frozen=True)
class Edit:
    """A text that stands exactly once in a file, and the text that it replaced."""

    file: str
    """From the root of the repository."""
    present: str
    buggy: str


@dataclass(frozen=True)
class Bug:
    """A bug that was fixed once, and how to have it back."""

    name: str
    """What went wrong, as a sentence."""
    source: str
    """Where it is told: a commit, a decision, or a line of the changelog."""
    edits: tuple[Edit, ...]
    found_by: tuple[str, ...]
    """Arguments of pytest. One of these tests fails with the bug, and none without it."""
    tier: Tier = "test"


def bug(
    name: str,
    source: str,
    file: str,
    present: str,
    buggy: str,
    *more: Edit,
    found_by: str | tuple[str, ...],
    tier: Tier = "test",
) -> Bug:
    """A row of the table. Most bugs are one edit and one test."""
    tests = (found_by,) if isinstance(found_by, str) else found_by
    return Bug(name, source, (Edit(file, present, buggy), *more), tests, tier)
