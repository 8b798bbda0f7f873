"""Build the documentation site: python -m scripts.site [--zensical PROGRAM]

The pages come from docs/ and from a few files beside it, the API reference from docstrings, and the
commands from their `--help`. The result is in out/site, in a folder per version; other versions
that are there stay. The build fails if the generator warns about anything, if a link is broken, if
a public name has no documentation, or if a page would load anything from another site.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from jobq.core.version import __version__
from scripts.site import api_pages, command_pages, nav
from scripts.site.pages import Pages
from scripts.site.result import problems, publish, version_of

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "out" / "docs"
SITE = ROOT / "out" / "site"
TIMEOUT_S = 300
"""Seconds: many times what the generator takes."""


def main() -> int:
    """Build, check, and put the site in its place."""
    parser = argparse.ArgumentParser(prog="python -m scripts.site", description=__doc__)
    parser.add_argument(
        "--zensical", default=str(Path(sys.executable).with_name("zensical")), help="the generator"
    )
    options = parser.parse_args()
    began = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    prepare(WORK)
    said = generate(options.zensical)
    found = [*said, *nav.problems(ROOT)]
    if not said:
        (WORK / "site" / "404.html").unlink()  # its links begin at the root of a host
        names = (ROOT / api_pages.NAMES).read_text(encoding="utf-8").split()
        found += problems(WORK / "site", names)
    for problem in found:
        print(problem)
    if found:
        print(f"docs: {len(found)} problems")
        return 1
    version = version_of(__version__)
    publish(WORK / "site", SITE, version)
    pages = sum(1 for _ in (SITE / version.folder).rglob("*.html"))
    place = (SITE / version.folder / "index.html").relative_to(ROOT)
    print(f"docs: {pages} pages in {time.monotonic() - began:.0f} s: {place}")
    return 0


def prepare(work: Path) -> None:
    """Write everything that the generator reads."""
    parts = nav.parts(ROOT)
    pages = Pages(ROOT, [page.path for part in parts for page in part.pages])
    docs = work / "docs"
    pages.write(docs)
    (docs / "site").mkdir()
    for name in ("extra.css", "iframe-worker.js"):
        shutil.copy(ROOT / "docs" / "site" / name, docs / "site")
    api = api_pages.pages(ROOT)
    written = {page.file: api_pages.text(page) for page in api}
    written[api_pages.FOLDER / "index.md"] = api_pages.index(api)
    written |= command_pages.texts()
    for file, text in written.items():
        (docs / file).parent.mkdir(parents=True, exist_ok=True)
        (docs / file).write_text(text, encoding="utf-8")
    entries: list[Any] = []
    for part in parts:
        groups = [[str(pages.places[page.path]) for page in group.pages] for group in part.groups]
        children: list[Any] = groups[0]
        if len(groups) > 1:
            children = [
                {group.title: places} for group, places in zip(part.groups, groups, strict=True)
            ]
        if part.title == "Reference":
            children += _reference(api)
        entries.append({part.title: children})
    settings = tomllib.loads((ROOT / "docs/site/zensical.toml").read_text(encoding="utf-8"))
    settings["project"] |= {"docs_dir": "docs", "site_dir": "site", "nav": entries}
    # YAML, because its superset JSON needs no library to write.
    (work / "mkdocs.yml").write_text(json.dumps(settings["project"], indent=1), encoding="utf-8")


def generate(zensical: str) -> list[str]:
    """Run the generator. Returns everything that it complained about."""
    done = subprocess.run(
        [zensical, "build", "--strict", "--clean", "--config-file", str(WORK / "mkdocs.yml")],
        cwd=WORK,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode or "warning" in output.lower():
        return [output.strip() or f"{zensical} ended with {done.returncode}"]
    return []


def _reference(api: list[api_pages.ApiPage]) -> list[Any]:
    commands = [str(command_pages.FOLDER / f"{name}.md") for name in command_pages.PROGRAMS]
    return [
        {"Commands": [str(command_pages.FOLDER / "index.md"), *commands]},
        {"API": [str(api_pages.FOLDER / "index.md"), *(str(page.file) for page in api)]},
    ]


if __name__ == "__main__":
    sys.exit(main())
