"""scripts/site copies pages, checks the result and keeps versions, all without a generator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import messages
from scripts.site import api_pages, command_pages, nav
from scripts.site.pages import Pages, four_spaces, place
from scripts.site.result import problems, publish, version_of

ROOT = Path(__file__).parents[2]


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ── navigation ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_nav(tmp_path, '{ path = "docs/a.md", title = "A", about = "all of it" }')
    write(tmp_path, "docs/a.md", "# A\n")
    return tmp_path


def write_nav(root: Path, *pages: str) -> None:
    head = '[[part]]\ntitle = "P"\nabout = "first"\n[[part.group]]\ntitle = "G"\n'
    write(root, "docs/nav.toml", f"{head}pages = [{', '.join(pages)}]\n")


def test_a_page_that_the_map_does_not_have_is_a_problem(repository: Path) -> None:
    assert nav.problems(repository) == []
    write(repository, "docs/b.md", "# B\n")
    assert nav.problems(repository) == ["docs/b.md: docs/nav.toml does not have this page"]


def test_a_page_that_does_not_exist_or_is_listed_twice_is_a_problem(repository: Path) -> None:
    page = '{ path = "docs/a.md", title = "A" }'
    write_nav(repository, page, page, '{ path = "docs/c.md", title = "C" }')
    assert nav.problems(repository) == [
        "docs/nav.toml: docs/a.md is listed 2 times",
        "docs/nav.toml: there is no docs/c.md",
    ]


def test_a_title_is_the_heading_of_its_page(repository: Path) -> None:
    write(repository, "docs/a.md", "# Another\n")
    assert nav.problems(repository) == [
        "docs/a.md: its heading is not the title in docs/nav.toml, 'A'"
    ]


def test_a_page_of_the_guide_has_at_most_300_lines(repository: Path) -> None:
    write_nav(repository, '{ path = "docs/guide/a.md", title = "A" }')
    (repository / "docs/a.md").unlink()
    write(repository, "docs/guide/a.md", "# A\n" + "\n" * 299)
    assert nav.problems(repository) == []
    write(repository, "docs/guide/a.md", "# A\n" + "\n" * 300)
    assert nav.problems(repository) == ["docs/guide/a.md: 301 lines, more than 300"]


def test_a_page_with_figures_names_their_commit_at_its_top(repository: Path) -> None:
    write_nav(repository, '{ path = "docs/a.md", title = "A", measured = true }')
    line = "Measured on commit `49ec5ad-dirty`; not measured again since.\n"
    write(repository, "docs/a.md", f"# A\n\n{line}")
    assert nav.problems(repository) == []
    for text in ("# A\n", "# A\n" + "\n" * 40 + line, "# A\n\nMeasured on commit `of today`.\n"):
        write(repository, "docs/a.md", text)
        (problem,) = nav.problems(repository)
        assert problem == "docs/a.md: no line at its top says `Measured on commit …`"


def test_a_table_of_pages_is_written_and_checked(repository: Path) -> None:
    head = '{ path = "docs/README.md", title = "Docs" }'
    write_nav(repository, head, '{ path = "docs/a.md", title = "A", about = "all of it" }')
    write(repository, "docs/README.md", f"# Docs\n\n{nav.BEGIN}old\n{nav.END}\nEnd.\n")
    assert nav.problems(repository) == [
        "docs/README.md: not up to date; run python -m scripts.site.nav"
    ]
    (text,) = nav.tables(repository).values()
    row = "| **P**: first | [A](a.md) |\n"
    assert text == f"# Docs\n\n{nav.BEGIN}| | |\n|---|---|\n{row}{nav.END}\nEnd.\n"
    write(repository, "docs/README.md", text)
    assert nav.problems(repository) == []


# ── pages ─────────────────────────────────────────────────────────────────────────────────────────


def test_links_lead_to_pages_of_the_site_and_to_files_that_it_shows(repository: Path) -> None:
    write(repository, "examples/x.py", "print('```')\n")
    write(repository, "docs/guide/README.md", "# Guide\n")
    page = (
        "# A\n\n[guide](guide/README.md#guide), [folder](guide), [code](../examples/x.py),\n"
        "[all](../examples), [out](https://example.org), [here](#a), `[no](link.md)`\n"
    )
    write(repository, "docs/a.md", page)
    pages = Pages(repository, [Path("docs/a.md"), Path("docs/guide/README.md")])
    site = repository / "out"
    pages.write(site)
    text = (site / "a.md").read_text()
    assert "[guide](guide/index.md#guide), [folder](guide/index.md)" in text
    assert "[code](source/examples/x.py.md)" in text
    assert "[all](source/examples/index.md)" in text
    assert "[out](https://example.org), [here](#a), `[no](link.md)`" in text
    assert "print('```')" in (site / "source/examples/x.py.md").read_text()
    assert "[x.py](x.py.md)" in (site / "source/examples/index.md").read_text()


def test_the_map_of_the_docs_is_the_first_page_of_the_site() -> None:
    assert place(Path("docs/README.md")) == Path("index.md")
    assert place(Path("ARCHITECTURE.md")) == Path("project/architecture.md")
    assert place(Path("bench/README.md")) == Path("project/bench.md")


def test_lists_are_indented_as_python_markdown_reads_them() -> None:
    page = "Text:\n- one\n  more\n\n  - inner\n\n  ```sh\n  a\n    b\n  ```\n\nEnd\n  kept\n"
    assert four_spaces(page) == (
        "Text:\n\n- one\n    more\n\n    - inner\n\n"
        "    ```sh\n    a\n      b\n    ```\n\nEnd\n  kept\n"
    )
    assert four_spaces("1. one\n   more\n") == "1. one\n    more\n"


# ── reference ─────────────────────────────────────────────────────────────────────────────────────


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    listed = (ROOT / api_pages.NAMES).read_text().split()
    placed = [
        full
        for page in api_pages.pages(ROOT)
        for name, members in page.names.items()
        for full in (name, *(f"{name}.{member}" for member in members))
    ]
    assert sorted(placed) == sorted(listed)


def test_every_command_has_a_part_of_its_page() -> None:
    pages = command_pages.texts()
    assert set(pages) == {
        command_pages.FOLDER / f"{name}.md" for name in (*command_pages.PROGRAMS, "index")
    }
    page = pages[command_pages.FOLDER / "jq-ctl.md"]
    assert "\n### jq-ctl job submit\n" in page
    assert "| `--payload" in page


# ── the result ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def site(tmp_path: Path) -> Path:
    write(tmp_path, "index.html", '<h1 id="jobq.Queue">x</h1><a href="b.html#there">b</a>')
    write(tmp_path, "b.html", '<p id="there">x</p><a href="https://example.org">fine</a>')
    return tmp_path


def test_a_site_without_faults_has_no_problems(site: Path) -> None:
    assert problems(site, ["jobq.Queue"]) == []


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("c.html", '<a href="gone.html">x</a>', "c.html: there is no gone.html"),
        ("c.html", '<a href="b.html#no">x</a>', "c.html: nothing is at b.html#no"),
        (
            "c.html",
            '<script src="https://cdn.example/x.js"></script>',
            "c.html loads https://cdn.example/x.js from another site",
        ),
        (
            "c.css",
            "@font-face{src:url(https://fonts.example/a.woff2)}",
            "c.css loads something from another site",
        ),
    ],
)
def test_a_fault_of_the_site_is_found(site: Path, file: str, text: str, problem: str) -> None:
    write(site, file, text)
    assert problems(site, []) == [problem]


def test_a_public_name_without_documentation_is_found(site: Path) -> None:
    assert problems(site, ["jobq.Nothing"]) == ["jobq.Nothing has no documentation"]


def test_versions_stay_beside_each_other_and_the_newest_release_is_first(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    to = tmp_path_factory.mktemp("versions")
    for release in ("0.9.3", "0.10.0", "0.11.0.dev0"):
        publish(site, to, version_of(release))
    listed = json.loads((to / "versions.json").read_text())
    assert [entry["version"] for entry in listed] == ["dev", "0.10", "0.9"]
    assert [entry["title"] for entry in listed] == ["0.11.0.dev0", "0.10.0", "0.9.3"]
    assert "url=0.10/index.html" in (to / "index.html").read_text()
    assert (to / "0.9" / "b.html").is_file()


# ── error messages ────────────────────────────────────────────────────────────────────────────────


def test_a_message_that_the_source_does_not_have_is_found(tmp_path: Path) -> None:
    page = "# T\n\n### `job … was lost`\n\nText.\n\n### `job … is full`\n\nText.\n"
    write(tmp_path, "docs/troubleshooting.md", page)
    write(tmp_path, "src/jobq/a.py", '"""job x is full"""\nraise E(f"job {id!r} was lost")\n')
    assert messages.problems(tmp_path) == [
        "docs/troubleshooting.md: no text of the source is like: job … is full",
        "docs/troubleshooting.md: 2 messages, fewer than 40",
    ]
