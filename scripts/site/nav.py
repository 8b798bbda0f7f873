"""The sections of the site, from docs/site/nav.toml, and whether they have every page once."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

NAV = Path("docs/site/nav.toml")


class Section(NamedTuple):
    """A tab of the site: its title and its pages, as paths in the repository."""

    title: str
    pages: tuple[Path, ...]


def sections(root: Path) -> list[Section]:
    """The sections in order. A pattern such as docs/decisions/*.md stands for its files."""
    listed = tomllib.loads((root / NAV).read_text(encoding="utf-8"))["section"]
    return [
        Section(
            section["title"],
            tuple(page for name in section["pages"] for page in _named(root, name)),
        )
        for section in listed
    ]


def problems(root: Path) -> list[str]:
    """Pages under docs/ that no section has, pages that are there twice, and pages that are not."""
    listed = Counter(page for section in sections(root) for page in section.pages)
    there = {path.relative_to(root) for path in (root / "docs").rglob("*.md")}
    return [
        *(f"{page}: no section of {NAV} has this page" for page in sorted(there - set(listed))),
        *(f"{NAV}: {page} is listed {n} times" for page, n in sorted(listed.items()) if n > 1),
        *(f"{NAV}: there is no {page}" for page in sorted(listed) if not (root / page).is_file()),
    ]


def _named(root: Path, name: str) -> list[Path]:
    if "*" not in name:
        return [Path(name)]
    found = sorted(path.relative_to(root) for path in root.glob(name))
    return sorted(found, key=lambda page: page.name != "README.md")


def main() -> int:
    """Check the navigation of the repository in the current folder."""
    found = problems(Path.cwd())
    for problem in found:
        print(problem)
    print(f"site: {len(found)} problems" if found else "site: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
