"""The map of the documentation, from docs/nav.toml: README's tables, and the site's navigation.

python -m scripts.site.nav           write the tables
python -m scripts.site.nav --check   exit 1 if a table, a page or the map itself is wrong
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

NAV = Path("docs/nav.toml")
GUIDE = Path("docs/guide")
MAX_LINES = 300
"""Of a page of the guide: more than that is two subjects."""
BEGIN, END = "<!-- begin scripts/site/nav.py -->\n", "<!-- end scripts/site/nav.py -->\n"
MEASURED = re.compile(r"^Measured on commit `[0-9a-f]{7,40}\b", re.MULTILINE)
TOP = 15
"""Lines in which a page with figures names the commit that they are of."""


class Page(NamedTuple):
    """A page: its path in the repository, its heading, and one line about it.

    Tables have the pages with such a line. The others are reached in other ways.
    """

    path: Path
    title: str
    about: str = ""
    main: bool = False
    measured: bool = False


class Group(NamedTuple):
    """Pages of one subject."""

    title: str
    pages: tuple[Page, ...]


class Part(NamedTuple):
    """A part of the reader's path, and a tab of the site."""

    title: str
    about: str
    groups: tuple[Group, ...]

    @property
    def pages(self) -> tuple[Page, ...]:
        """The pages of all groups."""
        return tuple(page for group in self.groups for page in group.pages)


def parts(root: Path) -> list[Part]:
    """The parts in order. A pattern such as docs/decisions/0*.md stands for its files."""
    read = tomllib.loads((root / NAV).read_text(encoding="utf-8"))["part"]
    return [
        Part(
            part["title"],
            part["about"],
            tuple(
                Group(
                    group["title"],
                    tuple(page for listed in group["pages"] for page in _pages(root, listed)),
                )
                for group in part["group"]
            ),
        )
        for part in read
    ]


def problems(root: Path) -> list[str]:
    """What is wrong with the map, with a page in it, or with a table that is made from it."""
    pages = [page for part in parts(root) for page in part.pages]
    listed = Counter(page.path for page in pages)
    there = {path.relative_to(root) for path in (root / "docs").rglob("*.md")}
    found = [
        *(f"{path}: {NAV} does not have this page" for path in sorted(there - set(listed))),
        *(f"{NAV}: {path} is listed {n} times" for path, n in sorted(listed.items()) if n > 1),
        *(f"{NAV}: there is no {path}" for path in sorted(listed) if not (root / path).is_file()),
    ]
    if not found:
        found += [problem for page in pages for problem in _page_problems(root, page)]
        found += [
            f"{path}: not up to date; run python -m scripts.site.nav"
            for path, text in tables(root).items()
            if (root / path).read_text(encoding="utf-8") != text
        ]
    return found


def tables(root: Path) -> dict[Path, str]:
    """The pages with a table of other pages, as they should be."""
    found, every = {}, parts(root)
    for path, lines in TABLES.items():
        if (root / path).is_file():
            text = (root / path).read_text(encoding="utf-8")
            before, begin, rest = text.partition(BEGIN)
            _, end, after = rest.partition(END)
            if not end:
                raise SystemExit(f"{path} does not have {BEGIN.strip()} and {END.strip()}")
            table = "".join(f"{line}\n" for line in lines(every))
            found[path] = f"{before}{begin}{table}{end}{after}"
    return found


def _page_problems(root: Path, page: Page) -> Iterator[str]:
    lines = (root / page.path).read_text(encoding="utf-8").splitlines()
    if lines[:1] != [f"# {page.title}"]:
        yield f"{page.path}: its heading is not the title in {NAV}, {page.title!r}"
    if GUIDE in page.path.parents and len(lines) > MAX_LINES:
        yield f"{page.path}: {len(lines)} lines, more than {MAX_LINES}"
    if page.measured and not MEASURED.search("\n".join(lines[:TOP])):
        yield f"{page.path}: no line at its top says `Measured on commit …`"


def _pages(root: Path, listed: dict[str, Any]) -> Iterator[Page]:
    if "*" not in listed["path"]:
        yield Page(**(listed | {"path": Path(listed["path"])}))
        return
    for file in sorted(root.glob(listed["path"])):
        heading = file.read_text(encoding="utf-8").partition("\n")[0]
        yield Page(file.relative_to(root), heading.removeprefix("# "))


# ── tables ────────────────────────────────────────────────────────────────────────────────────────


def _link(page: Page, here: Path) -> str:
    return f"[{page.title}]({os.path.relpath(page.path, here.parent)})"


def _row(title: str, pages: list[Page], here: Path) -> str:
    return f"| {title} | {' · '.join(_link(page, here) for page in pages)} |"


def _readme(every: list[Part]) -> Iterator[str]:
    """A row for each part, with its main pages."""
    yield from ("| | |", "|---|---|")
    for part in every:
        main = [page for page in part.pages if page.main]
        yield _row(f"**{part.title}**: {part.about}", main, Path("README.md"))


def _map(every: list[Part]) -> Iterator[str]:
    """A row for each group, with all its pages. Decisions have a list of their own."""
    here = Path("docs/README.md")
    yield from ("| | |", "|---|---|")
    for part in every:
        whole = f"**{part.title}**: {part.about}"
        if len(part.groups) > 1:
            yield f"| {whole} | |"
        for group in part.groups:
            pages = [page for page in group.pages if page.about]
            yield _row(group.title if len(part.groups) > 1 else whole, pages, here)


def _guide(every: list[Part]) -> Iterator[str]:
    """A heading for each part, and a row for each page of the guide."""
    here = GUIDE / "README.md"
    for part in every:
        groups = [
            (group, pages)
            for group in part.groups
            if (pages := [p for p in group.pages if GUIDE in p.path.parents and p.path != here])
        ]
        if groups:
            yield from (f"## {part.title}", "", f"{part.about[0].upper()}{part.about[1:]}.", "")
            yield from ("| page | what it covers |", "|---|---|")
        for group, pages in groups:
            if len(groups) > 1:
                yield f"| **{group.title}** | |"
            yield from (f"| {_link(page, here)} | {page.about} |" for page in pages)
        if groups:
            yield ""


def _decisions(every: list[Part]) -> Iterator[str]:
    """A row for each decision: its number and its title."""
    yield from ("| | |", "|---|---|")
    for page in (page for part in every for page in part.pages if not page.about):
        number, _, title = page.title.partition(". ")
        if page.path.parent.name == "decisions":
            yield f"| [{number}]({page.path.name}) | {title} |"


TABLES: dict[Path, Callable[[list[Part]], Iterator[str]]] = {
    Path("README.md"): _readme,
    Path("docs/README.md"): _map,
    Path("docs/guide/README.md"): _guide,
    Path("docs/decisions/README.md"): _decisions,
}


def main(arguments: list[str]) -> int:
    """Write the tables of the repository in the current folder, or check them."""
    root = Path.cwd()
    if "--check" not in arguments:
        for path, text in tables(root).items():
            (root / path).write_text(text, encoding="utf-8")
    found = problems(root)
    for problem in found:
        print(problem)
    print(f"nav: {len(found)} problems" if found else "nav: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
