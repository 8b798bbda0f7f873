"""The steps of a section of CONTRIBUTING."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.bugs.bug import Edit
from tests.bugs.tree import ROOT
from tests.docs.blocks import BLOCK

Command = tuple[str, ...]
Step = Edit | Command

PAGE = ROOT / "CONTRIBUTING.md"


def steps(heading: str) -> list[Step]:
    """The changes and commands of a section, in order."""
    return list(_steps(section(heading)))


def section(heading: str) -> str:
    """The text of a section of the second level."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found, f"CONTRIBUTING.md has no section {heading!r}"
    return found[1]


def _steps(text: str) -> Iterator[Step]:
    for block in BLOCK.finditer(text):
        if block["language"] == "diff":
            yield change(block["title"], block["text"])
        elif block["language"] == "console":
            for line in block["text"].splitlines():
                yield tuple(line.removeprefix("$ ").partition("#")[0].split())


def change(file: str, text: str) -> Edit:
    """A change in the format of diff, without numbers of lines."""
    lines = [(line[:1] or " ", line[1:]) for line in text.splitlines()]
    strange = [mark for mark, _ in lines if mark not in " +-"]
    assert file, "a change names no file: title=…"
    assert not strange, f"a change of {file} has lines that begin otherwise: {strange}"
    before = "".join(f"{line}\n" for mark, line in lines if mark != "+")
    after = "".join(f"{line}\n" for mark, line in lines if mark != "-")
    return Edit(file, before, after)
