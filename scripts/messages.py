"""Check that every message on docs/troubleshooting.md is one that jobq can show.

`make check` runs it. A heading of that page is a message, in which `…` stands for the parts that
differ. Its other parts must occur in this order in one text of the source. Texts are those of
Python under src/jobq, with `…` for the expressions in them, and the lines of Lua.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path("docs/troubleshooting.md")
SOURCE = Path("src/jobq")
HEADING = re.compile(r"^### (`+) ?(?P<message>.+?) ?\1$", re.MULTILINE)
LEAST = 40
"""Messages that the page must have: those that users meet first. A page of a few is no help."""


def messages(page: str) -> list[str]:
    """The messages on the page."""
    return [match["message"] for match in HEADING.finditer(page)]


def problems(root: Path) -> list[str]:
    """What is wrong: messages that are not in the source, headings that are none, too few."""
    page = (root / PAGE).read_text(encoding="utf-8")
    quoted = messages(page)
    known = list(texts(root / SOURCE))
    found = [
        f"{PAGE}: no text of the source is like: {message}"
        for message in quoted
        if not any(map(_pattern(message).search, known))
    ]
    if len(quoted) != len(re.findall(r"^### ", page, re.MULTILINE)):
        found.append(f"{PAGE}: a heading of the third level is a message in backticks")
    if len(quoted) < LEAST:
        found.append(f"{PAGE}: {len(quoted)} messages, fewer than {LEAST}")
    return found


def texts(source: Path) -> Iterator[str]:
    """Every text in the source."""
    for file in sorted(source.rglob("*.py")):
        yield from filter(None, _texts(ast.parse(file.read_text(encoding="utf-8"))))
    for file in sorted(source.rglob("*.lua")):
        yield from file.read_text(encoding="utf-8").splitlines()


def _texts(tree: ast.Module) -> Iterator[str | None]:
    nodes = list(ast.walk(tree))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return (_text(node) for node in nodes if id(node) not in docs)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) or "…" for value in node.values)
    return None


def _pattern(message: str) -> re.Pattern[str]:
    parts = [re.escape(part) for part in re.split("…+", message)]
    return re.compile(".*".join(parts), re.DOTALL)


def main() -> int:
    """Check the repository in the current folder."""
    found = problems(Path.cwd())
    for problem in found:
        print(problem)
    print(f"messages: {len(found)} problems" if found else "messages: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
