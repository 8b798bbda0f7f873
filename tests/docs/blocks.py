"""The code blocks of the documentation, and the commands in those that show a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHELL = ("console", "sh")
BLOCK = re.compile(
    r"(?:^<!-- (?P<held>not run|checked by): (?P<reason>[^>]*?) -->\n\n?)?"
    r'^(?P<indent> *)```(?P<language>[a-z]*)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"(^|\s+)# .*$")
BETWEEN = {"&&", "||", "|", ";", "&"}
"""What stands between two commands of a line."""


class Shown(NamedTuple):
    """A command line of a block, and the output that the block shows for it."""

    line: str
    output: str

    def commands(self) -> Iterator[list[str]]:
        """The simple commands of the line as words, without assignments and redirections."""
        words: list[str] = []
        for word in [*_words(self.line), ";"]:
            if word not in BETWEEN:
                words.append(word)
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield words[: words.index(">")] if ">" in words else words
            words = []


class Block(NamedTuple):
    """A code block: where it is, its language, and the reason why no test here runs it."""

    page: str
    language: str
    title: str
    text: str
    held: str
    reason: str

    def shown(self) -> Iterator[Shown]:
        """The command lines. In `console` blocks they begin with `$`, and output follows."""
        line, output = "", ""
        for part in [*self.text.splitlines(keepends=True), None]:
            begins = part is None or self.language == "sh" or part.startswith("$ ")
            if line and begins and _is_whole(line):
                yield Shown(_joined(line), output)
                line, output = "", ""
            if part is None:
                break
            if begins and not COMMENT.sub("", part).strip():
                continue
            if begins or not _is_whole(line):
                line += part.removeprefix("$ ")
            else:
                output += part


def blocks() -> list[Block]:
    """Every block of every page."""
    return [
        Block(
            str(page.relative_to(ROOT)),
            match["language"],
            match["title"] or "",
            re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            match["held"] or "",
            " ".join((match["reason"] or "").split()),
        )
        for page in PAGES
        for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def shell_blocks() -> list[Block]:
    """The blocks that show a shell."""
    return [block for block in blocks() if block.language in SHELL]


def _is_whole(line: str) -> bool:
    """Whether a line needs no more lines: no quote is open, and it does not end in a backslash."""
    if COMMENT.sub("", line).rstrip().endswith(("\\", "|")):
        return False
    try:
        _words(_joined(line))
    except ValueError:
        return False
    return True


def _joined(line: str) -> str:
    return line.replace("\\\n", " ").strip()


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(COMMENT.sub("", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)
