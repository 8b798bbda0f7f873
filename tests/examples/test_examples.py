"""Every example runs by itself, and every excerpt in the guide is copied from an example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = [  # tests/cli runs the demo, tests/web the applications
    path
    for folder in ("examples", "examples/coming_from")
    for path in sorted((ROOT / folder).glob("*.py"))
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXCERPT = re.compile(
    r'^```python title="(?P<file>[^"]+)"\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_by_itself(example: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout, "an example shows something"
    # A job that fails for good is logged with its traceback. There must be no other tracebacks.
    assert done.stderr.count("Traceback") <= done.stderr.count("failed for good"), done.stderr


def excerpts() -> list[tuple[Path, str, str]]:
    return [
        (page, match["file"], match["code"])
        for page in PAGES
        for match in EXCERPT.finditer(page.read_text())
    ]


@pytest.mark.parametrize(
    ("page", "file", "code"),
    excerpts(),
    ids=lambda value: value.stem if isinstance(value, Path) else None,
)
def test_an_excerpt_is_a_literal_part_of_its_example(page: Path, file: str, code: str) -> None:
    source = (ROOT / file).read_text()
    pieces = [
        piece.strip("\n") for piece in re.split(r"^\s*# …$", dedent(code), flags=re.MULTILINE)
    ]
    for piece in pieces:
        assert any(indent(piece, " " * depth) in source for depth in (0, 4, 8, 12)), (
            f"not in {file}:\n{piece}"
        )


def test_every_python_block_of_the_guide_names_its_example() -> None:
    loose = [
        str(page.relative_to(ROOT))
        for page in PAGES
        if re.search(r"^```python$", page.read_text(), re.MULTILINE)
    ]
    assert loose == [], 'begin the block with ```python title="examples/….py"'


@pytest.mark.parametrize("page", ["README.md", "docs/guide/getting-started.md"])
def test_the_first_block_of_a_first_page_runs_when_it_is_pasted(page: str, tmp_path: Path) -> None:
    block = EXCERPT.search((ROOT / page).read_text())
    assert block is not None
    (tmp_path / "quickstart.py").write_text(block["code"])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    done = subprocess.run(
        [sys.executable, "quickstart.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "sent 'Hello' to ada@example.org\n"), done.stderr
