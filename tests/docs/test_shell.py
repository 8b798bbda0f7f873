"""Every command on the pages can be typed: it is run here, or the page says why not.

`python -m tests.docs.test_shell` writes shell_blocks.txt, whose diff shows what was decided.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, shell_blocks
from tests.docs.command_checks import CHECKED, check
from tests.docs.walk import Walk

LISTED = Path(__file__).with_name("shell_blocks.txt")
APPS = {
    "docs/guide/applications.md": "examples/shop",
    "docs/guide/getting-started.md": "examples/quickstart.py",
}
"""The code that the commands of a page name. Other pages: tests/docs/apps/shop."""
BEFORE = {"docs/guide/keys-and-limits.md": "jq-ctl queue create deliveries --mode keyed"}
"""What the Python code of a page has done before its commands."""


def status(block: Block) -> str:
    """How a block is held: run here, checked by the names in it, or not run for a reason."""
    if block.held:
        return f"{block.held}: {block.reason}"
    programs = {words[0] for shown in block.shown() for words in shown.commands()}
    return "checked" if programs <= set(CHECKED) else "run"


def listed() -> list[str]:
    """A line for every block: its page, its first command, and how it is held."""
    return [
        f"{block.page} | {next(block.shown()).line.splitlines()[0]} | {status(block)}"
        for block in shell_blocks()
    ]


RUN = sorted({block.page for block in shell_blocks() if status(block) == "run"})


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    walk = Walk(tmp_path, monkeypatch)
    yield walk
    walk.kill()


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run_in_its_order(page: str, walk: Walk) -> None:
    app = ROOT / APPS.get(page, "tests/docs/apps/shop")
    copied = walk.folder / app.name
    shutil.copytree(app, copied) if app.is_dir() else shutil.copy(app, copied)
    if page in BEFORE:
        walk.run(Block(page, "sh", "", BEFORE[page], "", ""))
    for block in shell_blocks():
        if block.page == page and status(block) == "run":
            walk.run(block)
    walk.stop()


@pytest.mark.parametrize("block", shell_blocks(), ids=lambda block: Path(block.page).stem)
def test_every_option_target_and_name_in_a_command_exists(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for shown in block.shown():
        for words in shown.commands():
            check(words)


def test_the_list_of_blocks_says_how_each_is_held() -> None:
    assert LISTED.read_text().splitlines() == listed(), "python -m tests.docs.test_shell"


def test_a_reason_names_only_tests_that_exist() -> None:
    for block in shell_blocks():
        for name in re.findall(r"tests/[\w/]+(?:\.py)?", block.reason):
            assert (ROOT / name).exists(), f"{block.page}: {name}"


if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for line in listed()))
