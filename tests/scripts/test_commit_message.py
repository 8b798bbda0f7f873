"""The commit-msg hook: which messages it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.commit_message import SCISSORS, main, problem

WHY = "\n\nIt had seven meanings.\n"


@pytest.mark.parametrize(
    "subject",
    [
        "Move QueueStats to core/records/queues.py",
        "Move " + "x" * 67,
        "Pass the clock to the sender",
        "Process one batch at a time",
        "Bring back the second lane",
        "Feed the parser in chunks",
        "Re-read the token file",
        "Let jq-ctl wait",
    ],
)
def test_a_subject_in_the_imperative_is_accepted(subject: str) -> None:
    assert problem(subject + WHY) is None


@pytest.mark.parametrize(
    "message",
    [
        "Rename told to message\n# Please enter the message\n\nIt had seven meanings.\n# On branch",
        f"Rename told to message{WHY}{SCISSORS}\ndiff --git a/x b/x\n",
        f"Rename told to message{WHY}\nSigned-off-by: A Person <a@example.com>\n",
        'Revert "' + "x" * 80 + '"',
        "Merge branch 'a' into a branch with quite a long name, longer than a subject may be",
        "fixup! Rename told to message",
    ],
)
def test_a_good_message_is_accepted(message: str) -> None:
    assert problem(message) is None


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("Move " + "x" * 68 + WHY, "73 characters, and 72 are allowed"),
        ("", "the first line is empty"),
        ("# only a comment\n", "the first line is empty"),
        ("\nA subject too late", "the first line is empty"),
        ("Rename told to message." + WHY, "full stop"),
        ("Rename told\nto message", "second line is not empty"),
        ("Rename told to message", "there is no body"),
        ("Rename told to message\n\n# On branch main\n", "there is no body"),
        (f"Rename told to message\n\n{SCISSORS}\ndiff --git a/x b/x\n", "there is no body"),
        ("Rename told to message\n\nCo-authored-by: A Person <a@example.com>", "there is no body"),
    ],
)
def test_a_bad_message_is_refused_with_what_to_do(message: str, words: str) -> None:
    found = problem(message)
    assert found is not None
    assert words in found


@pytest.mark.parametrize(
    "subject",
    [
        "Renamed told to message",
        "Renaming told to message",
        "Renames told to message",
        "rename told to message",
        "Tests for the sender",
        "Tests: wait for the sender",
        "PostgreSQL: wait for the sender",
        "jq-ctl: wait for the sender",
        "The sender waits",
        "A sender that waits",
        "Wording of errors",
    ],
)
def test_a_subject_that_does_not_begin_with_a_verb_in_the_imperative_is_refused(
    subject: str,
) -> None:
    found = problem(subject + WHY)
    assert found is not None
    assert f"begins with {subject.split()[0]!r}: begin with a verb" in found


def test_the_hook_reads_the_file_that_git_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("x" * 80)
    assert main([str(message)]) == 1
    assert "80 characters" in capsys.readouterr().err
    message.write_text("Rename told to message" + WHY)
    assert main([str(message)]) == 0
    assert main([]) == 2
