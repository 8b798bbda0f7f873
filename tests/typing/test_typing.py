"""mypy --strict accepts what users write, and rejects each misuse."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

HERE = Path(__file__).parent
IGNORED = re.compile(r"  # type: ignore\[([a-z-]+)\]")


def _mypy(*files: Path) -> str:
    """The output of mypy; empty if there are no errors."""
    out, err, status = api.run(
        ["--strict", "--no-error-summary", "--hide-error-context", *map(str, files)]
    )
    assert not err
    assert status in (0, 1)
    return out


def test_mypy_accepts_the_example_of_the_design() -> None:
    assert _mypy(HERE / "accepted.py") == ""


def test_mypy_rejects_each_misuse_with_the_error_it_is_marked_with(tmp_path: Path) -> None:
    text = (HERE / "rejected.py").read_text()
    expected = {
        n: found[1]
        for n, line in enumerate(text.splitlines(), 1)
        if (found := IGNORED.search(line))
    }
    assert expected
    bare = tmp_path / "rejected.py"
    bare.write_text(IGNORED.sub("", text))
    reported = {
        int(n): code
        for n, code in re.findall(
            r"rejected\.py:(\d+): error: .*\[([a-z-]+)\]$", _mypy(bare), re.MULTILINE
        )
    }
    assert reported == expected
