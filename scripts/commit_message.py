"""Checks a commit message: a subject in the imperative, and a body that says why.

`.pre-commit-config.yaml` runs it as a commit-msg hook. To run it by hand:
`python scripts/commit_message.py FILE`.

It knows no grammar. It refuses a subject whose first word, by its ending, cannot be a verb in the
imperative. It sees whether there is a body, not whether the body gives a reason.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MAX_SUBJECT = 72
"""Characters. `git log --oneline` and forges cut a longer subject off."""

WRITTEN_BY_GIT = ("Merge ", 'Revert "', "fixup! ", "squash! ", "amend! ")
"""How subjects begin that git writes. They quote another subject, and need no body."""

SCISSORS = "# ------------------------ >8 ------------------------"
"""Below this line, `git commit --verbose` shows the diff. It is not part of the message."""

TRAILER = re.compile(r"[A-Z][a-z]+(-[a-z]+)*-by: ")
"""Signed-off-by and its like name people. They give no reason."""

WORD = re.compile(r"[A-Z][a-z]+(-[a-z]+)*")
NOT_A_VERB = {"A", "All", "An", "Each", "Every", "It", "New", "No", "One", "Some", "The", "This"}
OTHER_FORM = re.compile(r".+(ed|ing|s)")
"""Added, Adding, Adds; and nouns in the plural: Tests, Docs."""
IMPERATIVE = re.compile(
    r".+ss|.+eed|Alias|Bring|Embed|Fling|Focus|Ping|Ring|Shed|Spring|String|Swing|Wed"
)
"""Verbs that end like another form: Pass, Process, Feed, Bring."""


def problem(message: str) -> str | None:
    """What is wrong with a commit message, or None."""
    text = message.partition(SCISSORS)[0]
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if not subject:
        return "the first line is empty: say in it what the commit changes"
    if subject.startswith(WRITTEN_BY_GIT):
        return None
    if (found := _problem_of_subject(subject)) is not None:
        return found
    if len(lines) > 1 and lines[1]:
        return "the second line is not empty: leave a blank line between the subject and the body"
    if not any(line and not TRAILER.match(line) for line in lines[1:]):
        return "there is no body: say why the commit is made, below an empty line"
    return None


def _problem_of_subject(subject: str) -> str | None:
    if len(subject) > MAX_SUBJECT:
        return (
            f"the subject has {len(subject)} characters, and {MAX_SUBJECT} are allowed: "
            "name one change, and give the reasons below an empty line"
        )
    if subject.endswith("."):
        return "the subject ends with a full stop: leave it out"
    first = subject.split()[0]
    other_form = OTHER_FORM.fullmatch(first) and not IMPERATIVE.fullmatch(first)
    if not WORD.fullmatch(first) or first in NOT_A_VERB or other_form:
        return (
            f"the subject begins with {first!r}: begin with a verb in the imperative and a capital "
            'letter, as in "Move QueueStats to core/records/queues.py"'
        )
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
