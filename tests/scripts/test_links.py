"""scripts/links.py finds broken links and unreachable pages, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.links import anchors, check

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose links are all right."""
    write(tmp_path, "README.md", "# jobq\n\nRead [the guide](docs/guide/README.md).\n")
    write(tmp_path, "docs/guide/README.md", "# The guide\n\n- [Tasks](tasks.md#many-at-once)\n")
    write(tmp_path, "docs/guide/tasks.md", "# Tasks\n\n## Many at once\n\n[up](#tasks)\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_repository_without_broken_links_has_no_problems(root: Path) -> None:
    assert check(root) == []


def test_a_link_to_a_file_that_does_not_exist_is_a_problem(root: Path) -> None:
    write(root, "README.md", "# jobq\n\n[guide](docs/guide/README.md)\n[gone](docs/gone.md)\n")
    assert check(root) == ["README.md:4: there is no docs/gone.md"]


def test_a_fragment_that_no_heading_has_is_a_problem(root: Path) -> None:
    write(root, "docs/guide/README.md", "# The guide\n\n[Tasks](tasks.md#few-at-once)\n")
    assert check(root) == ["docs/guide/README.md:3: tasks.md has no heading #few-at-once"]


def test_a_page_that_no_link_leads_to_is_a_problem(root: Path) -> None:
    write(root, "docs/guide/lost.md", "# Lost\n\nBack to [tasks](tasks.md).\n")
    assert check(root) == [
        "docs/guide/lost.md: no link leads here from README.md",
        "docs/guide/lost.md: no link leads here from docs/guide/README.md",
    ]


def test_a_page_reached_only_from_outside_the_guide_is_a_problem_of_the_guide(root: Path) -> None:
    write(root, "README.md", "# jobq\n\n[guide](docs/guide/README.md), [x](docs/guide/x.md)\n")
    write(root, "docs/guide/x.md", "# X\n")
    assert check(root) == ["docs/guide/x.md: no link leads here from docs/guide/README.md"]


def test_links_in_code_and_to_other_sites_are_left_alone(root: Path) -> None:
    write(
        root,
        "docs/guide/tasks.md",
        "# Tasks\n\n## Many at once\n\n```text\n[a](none.md)\n```\n"
        "`[b](none.md)`, [c](https://example.org/none.md), [d](mailto:ada@example.org)\n",
    )
    assert check(root) == []


def test_hidden_and_installed_folders_are_left_alone(root: Path) -> None:
    write(root, ".venv/lib/page.md", "[a](none.md)")
    write(root, "bench/peers/node/node_modules/p/README.md", "[a](none.md)")
    assert check(root) == []


def test_anchors_are_built_as_github_builds_them() -> None:
    text = "# What `jq-ctl` is\n## Twice\n## Twice\n```\n# not a heading\n```\n## A, b & c\n"
    assert anchors(text) == {"what-jq-ctl-is", "twice", "twice-1", "a-b--c"}


def test_every_link_of_this_repository_resolves() -> None:
    assert check(ROOT) == []
