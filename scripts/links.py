"""Check that every relative link in the Markdown pages resolves and that every page can be reached.

`make check` runs it. It prints one line per problem and exits 1 if there is any.

- A link to a file names a file or folder of the repository.
- A link with a `#fragment` names a heading of its page.
- Following links from docs/guide/README.md reaches every page of the guide. Following links from
  README.md reaches every page under docs/.

Links to other sites are not checked, so the check needs no network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z]+:", re.IGNORECASE)

SKIPPED_FOLDERS = frozenset({"node_modules", "out"})

# First page → the folder whose pages must all be reachable from it.
REACHABLE = {"README.md": "docs", "docs/guide/README.md": "docs/guide"}


class Link(NamedTuple):
    """A relative link: the line it is on, the path and the fragment as written."""

    line: int
    path: str
    fragment: str


def links(text: str) -> Iterator[Link]:
    """The relative links of a page, without those in code."""
    prose = CODE.sub(_blank, FENCE.sub(_blank, text))
    for match in LINK.finditer(prose):
        if not ELSEWHERE.match(match["target"]):
            path, _, fragment = match["target"].partition("#")
            yield Link(prose.count("\n", 0, match.start()) + 1, path, fragment)


def anchors(text: str) -> frozenset[str]:
    """The fragments that a page's headings can be linked by, as GitHub builds them."""
    found: dict[str, int] = {}
    names = []
    for match in HEADING.finditer(FENCE.sub(_blank, text)):
        name = re.sub(r"[^\w\- ]", "", match["title"].lower()).replace(" ", "-")
        repeats = found[name] = found.get(name, -1) + 1
        names.append(f"{name}-{repeats}" if repeats else name)
    return frozenset(names)


def check(root: Path) -> list[str]:
    """Every problem in the pages under `root`, as `page:line: what is wrong`."""
    root = root.resolve()
    pages = {page: page.read_text(encoding="utf-8") for page in _pages(root)}
    problems = []
    leads_to: dict[Path, set[Path]] = {page: set() for page in pages}
    for page, text in pages.items():
        for link in links(text):
            target = (page.parent / link.path).resolve() if link.path else page
            leads_to[page].add(target)
            problem = _broken(link, target, pages)
            if problem:
                problems.append(f"{page.relative_to(root)}:{link.line}: {problem}")
    for first, folder in REACHABLE.items():
        problems += _unreachable(root, root / first, root / folder, leads_to)
    return problems


def _pages(root: Path) -> Iterator[Path]:
    """The Markdown files under `root`, without those in hidden, installed or generated folders."""
    for page in sorted(root.rglob("*.md")):
        folders = page.relative_to(root).parts[:-1]
        if not any(name.startswith(".") or name in SKIPPED_FOLDERS for name in folders):
            yield page


def _broken(link: Link, target: Path, pages: dict[Path, str]) -> str | None:
    if not target.exists():
        return f"there is no {link.path}"
    if link.fragment and target in pages and link.fragment not in anchors(pages[target]):
        return f"{target.name} has no heading #{link.fragment}"
    return None


def _unreachable(
    root: Path, first: Path, folder: Path, leads_to: dict[Path, set[Path]]
) -> Iterator[str]:
    reached, ahead = set(), [first]
    while ahead:
        page = ahead.pop()
        if page in leads_to and page not in reached:
            reached.add(page)
            ahead += leads_to[page]
    for page in leads_to:
        if page.is_relative_to(folder) and page not in reached:
            yield f"{page.relative_to(root)}: no link leads here from {first.relative_to(root)}"


def _blank(match: re.Match[str]) -> str:
    """Line breaks only, so that the lines of what follows keep their numbers."""
    return "\n" * match[0].count("\n")


def main() -> int:
    """Check the repository in the current folder."""
    problems = check(Path.cwd())
    for problem in problems:
        print(problem)
    print(f"links: {len(problems)} broken" if problems else "links: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
