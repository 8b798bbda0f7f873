"""Checks the site that the generator made, and puts it beside the other versions."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements whose address a browser loads without being asked."""
IMPORTED = re.compile(r"""(?:url\(|@import )["']?(?:https?:)?//""")
REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>jobq</title>
<meta http-equiv="refresh" content="0; url={version}/index.html">
<a href="{version}/index.html">jobq {title}</a>
"""


class Version(NamedTuple):
    """A version of the docs: the folder it is in, and its title in the selector."""

    folder: str
    title: str


def version_of(release: str) -> Version:
    """0.2.0 is in the folder 0.2, as are 0.2.1 and later. A development version is in dev."""
    folder = "dev" if "dev" in release else ".".join(release.split(".")[:2])
    return Version(folder, release)


class Found(HTMLParser):
    """What one page loads, links to, and can be linked by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect addresses and ids."""
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(str(values["id"]))
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if LOADS.get(tag) in values and values.get("rel") != "canonical":
            self.loads.append(str(values[LOADS[tag]]))


def problems(site: Path, names: Iterable[str]) -> list[str]:
    """External resources, broken links, and public names without documentation."""
    pages = {page: Found(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))}
    found = [*_loaded(site, pages), *_broken(site, pages)]
    anchors = {anchor for page in pages.values() for anchor in page.ids}
    found += [f"{name} has no documentation" for name in names if name not in anchors]
    return found


def publish(site: Path, to: Path, version: Version) -> None:
    """Replace this version in the folder of all versions, and write the list of them."""
    shutil.rmtree(to / version.folder, ignore_errors=True)
    to.mkdir(parents=True, exist_ok=True)
    shutil.copytree(site, to / version.folder)
    (to / version.folder / "version.txt").write_text(version.title, encoding="utf-8")
    there = [
        Version(file.parent.name, file.read_text(encoding="utf-8"))
        for file in to.glob("*/version.txt")
    ]
    there.sort(key=_order, reverse=True)
    listed = [{"version": v.folder, "title": v.title, "aliases": []} for v in there]
    (to / "versions.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")
    released = [v for v in there if v.folder != "dev"]
    first = (released or there)[0]
    page = REDIRECT.format(version=first.folder, title=first.title)
    (to / "index.html").write_text(page, encoding="utf-8")


def _order(version: Version) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.title))


def _loaded(site: Path, pages: dict[Path, Found]) -> Iterator[str]:
    for page, found in pages.items():
        for address in found.loads:
            if urlsplit(address).netloc:
                yield f"{page.relative_to(site)} loads {address} from another site"
    for style in sorted(site.rglob("*.css")):
        if IMPORTED.search(style.read_text(encoding="utf-8")):
            yield f"{style.relative_to(site)} loads something from another site"


def _broken(site: Path, pages: dict[Path, Found]) -> Iterator[str]:
    for page, found in pages.items():
        for link in [*found.links, *found.loads]:
            path, fragment = urldefrag(link)
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target = (page.parent / unquote(path)).resolve() if path else page
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{page.relative_to(site)}: there is no {link}"
            elif fragment and target in pages and unquote(fragment) not in pages[target].ids:
                yield f"{page.relative_to(site)}: nothing is at {link}"
