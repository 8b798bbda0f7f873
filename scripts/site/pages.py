"""Copies the Markdown pages of the repository for the generator, with links to pages of the site.

The pages are written for a code host: their links name files of the repository. On the site, a link
to a page leads to the page, and a link to another file or a folder leads to a page that shows it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from scripts.links import CODE, ELSEWHERE, FENCE, LINK

HOME = Path("docs/README.md")
SOURCE = Path("source")
"""Where the site shows files of the repository that are not pages."""
IMAGES = (".svg", ".png")
MARKDOWN_COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
DIAGRAM = re.compile(r"^!\[(?P<alt>[^\]]*)\]\((?P<path>[^)]*diagrams/[^)]+\.svg)\)$", re.MULTILINE)
LIST_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".avsc": "json",
    ".go": "go",
    ".js": "js",
    ".mjs": "js",
    ".lua": "lua",
    ".sql": "sql",
    ".proto": "proto",
    ".sh": "sh",
    ".service": "ini",
    ".html": "html",
}


class Pages:
    """The pages of the site: which file each comes from, and the files that links ask for."""

    def __init__(self, root: Path, pages: list[Path]) -> None:
        self.root = root.resolve()
        self.places = {page: place(page) for page in pages}
        self.shown: set[Path] = set()

    def write(self, to: Path) -> None:
        """Write every page, the images beside them, and the files that they link to."""
        for page, target in self.places.items():
            _write(to / target, self.converted(page))
        for image in (self.root / "docs").rglob("*.*"):
            if image.suffix in IMAGES:
                target = to / place(image.relative_to(self.root))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(image, target)
        done: set[Path] = set()
        while ahead := self.shown - done:
            for path in sorted(ahead):
                _write(to / shown_at(self.root, path), self._shown(path))
            done |= ahead

    def converted(self, page: Path) -> str:
        """The text of a page as the generator reads it."""
        text = (self.root / page).read_text(encoding="utf-8")
        text = MARKDOWN_COMMENT.sub("", text)
        text = self._inlined(page, self._linked(page, text))
        return four_spaces(text)

    def _linked(self, page: Path, text: str) -> str:
        prose = FENCE.sub(lambda fence: "\n" * len(fence[0]), text)
        code = [match.span() for match in (*FENCE.finditer(text), *CODE.finditer(prose))]

        def link(match: re.Match[str]) -> str:
            if ELSEWHERE.match(match["target"]) or match["target"].startswith("#"):
                return match[0]
            if any(begin <= match.start() < end for begin, end in code):
                return match[0]
            return f"]({self._target(page, match['target'])})"

        return LINK.sub(link, text)

    def _target(self, page: Path, link: str) -> str:
        path, _, fragment = link.partition("#")
        file = (self.root / page.parent / path).resolve().relative_to(self.root)
        if file / "README.md" in self.places:
            file /= "README.md"
        if file in self.places:
            found, fragment = self.places[file], f"#{fragment}" if fragment else ""
        elif file.suffix in IMAGES:
            found, fragment = place(file), ""
        else:
            self.shown.add(file)
            found, fragment = shown_at(self.root, file), ""
        return os.path.relpath(found, self.places[page].parent) + fragment

    def _inlined(self, page: Path, text: str) -> str:
        """The diagrams as part of the page, so that they follow its light or dark colours."""

        def inline(match: re.Match[str]) -> str:
            file = self.root / "docs" / "diagrams" / Path(match["path"]).name
            return f'<div class="diagram">\n{file.read_text(encoding="utf-8").strip()}\n</div>'

        return DIAGRAM.sub(inline, text)

    def _shown(self, path: Path) -> str:
        """A page that shows a file, or lists a folder."""
        file = self.root / path
        head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
        if file.is_dir():
            entries = sorted(
                entry.relative_to(self.root)
                for entry in file.iterdir()
                if not entry.name.startswith((".", "__pycache__")) and entry.name != "node_modules"
            )
            self.shown.update(entries)
            here = shown_at(self.root, path).parent
            return head + "".join(
                f"- [{entry.name}]({os.path.relpath(shown_at(self.root, entry), here)})\n"
                for entry in entries
            )
        language = LANGUAGES.get(path.suffix, "text")
        return f"{head}~~~~~ {language}\n{file.read_text(encoding='utf-8')}\n~~~~~\n"


def place(page: Path) -> Path:
    """Where a file of the repository is on the site."""
    if page == HOME:
        return Path("index.md")
    if page.parts[0] == "docs":
        page = Path(*page.parts[1:])
        return page.with_name("index.md") if page.name == "README.md" else page
    if page.name == "README.md":
        return Path("project", f"{page.parent.name}.md")
    return Path("project", page.name.lower())


def shown_at(root: Path, path: Path) -> Path:
    """Where the site shows a file or a folder that is not a page."""
    if (root / path).is_dir():
        return SOURCE / path / "index.md"
    return SOURCE / path.with_name(f"{path.name}.md")


def four_spaces(text: str) -> str:
    """Lists as Python-Markdown reads them: indented by four, and behind an empty line."""
    lines: list[str] = []
    in_list = in_fence = False
    shift = 0
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        fence = bare.startswith(("```", "~~~"))
        if not in_fence and bare:
            if indent == 0:
                begins = LIST_ITEM.match(bare) is not None
                if begins and not in_list and lines and lines[-1]:
                    lines.append("")
                in_list = begins
            # A continuation is indented by 2 behind a dash, and by 3 behind a number.
            shift = 4 * max(1, round(indent / 2 - 0.25)) - indent if in_list and indent else 0
        in_fence ^= fence
        lines.append(" " * shift + line if bare else "")
    return "\n".join(lines)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
