"""The commit-msg hook: which messages it accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.commit_message import main, problem


@pytest.mark.parametrize(
    "message",
    [
        "Move QueueStats to core/queues.py",
        "x" * 72,
        "Rename told to message\n\nIt had seven meanings.\n",
        "Rename told to message\n# Please enter the commit message\n# for your changes.\n",
        'Revert "' + "x" * 80 + '"',
        "Merge branch 'a' into a branch with quite a long name, longer than a subject may be",
    ],
)
def test_a_good_message_is_accepted(message: str) -> None:
    assert problem(message) is None


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("x" * 73, "73 characters, and 72 are allowed"),
        ("", "the first line is empty"),
        ("# only a comment\n", "the first line is empty"),
        ("\nA subject too late", "the first line is empty"),
        ("Rename told to message.", "full stop"),
        ("Rename told\nto message", "second line is not empty"),
    ],
)
def test_a_bad_message_is_refused_with_what_to_do(message: str, words: str) -> None:
    found = problem(message)
    assert found is not None
    assert words in found


def test_the_hook_reads_the_file_that_git_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("x" * 80)
    assert main([str(message)]) == 1
    assert "80 characters" in capsys.readouterr().err
    message.write_text("Rename told to message\n")
    assert main([str(message)]) == 0
    assert main([]) == 2
