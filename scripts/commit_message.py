"""Checks a commit message: a subject of at most 72 characters, and an empty line after it.

`.pre-commit-config.yaml` runs it as a commit-msg hook. To run it by hand:
`python scripts/commit_message.py FILE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

MAX_SUBJECT = 72
"""Characters. `git log --oneline` and forges cut a longer subject off."""

WRITTEN_BY_GIT = ("Merge ", 'Revert "', "fixup! ", "squash! ", "amend! ")
"""How subjects begin that git writes. They quote another subject and may be longer."""


def problem(message: str) -> str | None:
    """What is wrong with a commit message, or None."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0].rstrip() if lines else ""
    if not subject:
        return "the first line is empty: say in it what the commit changes"
    if subject.startswith(WRITTEN_BY_GIT):
        return None
    if len(subject) > MAX_SUBJECT:
        return (
            f"the subject has {len(subject)} characters, and {MAX_SUBJECT} are allowed: "
            "name one change, and give the reasons below an empty line"
        )
    if subject.endswith("."):
        return "the subject ends with a full stop: leave it out"
    if len(lines) > 1 and lines[1].strip():
        return "the second line is not empty: leave a blank line between the subject and the body"
    return None


def main(arguments: list[str]) -> int:
    """0 if the message in the file is fine, 1 if not."""
    if len(arguments) != 1:
        print("usage: commit_message.py FILE", file=sys.stderr)
        return 2
    found = problem(Path(arguments[0]).read_text("utf-8"))
    if found is not None:
        print(f"commit message: {found}", file=sys.stderr)
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
