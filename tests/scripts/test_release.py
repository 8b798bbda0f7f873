"""What `make release` decides; what it does, it does by building and installing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import release
from scripts.release import Refused, changes, is_final, not_ready, quickstart, unexpected

ROOT = Path(__file__).parents[2]
REAL = ["https://forge.org/jobq"]


def test_changed_and_new_files_make_a_tree_dirty() -> None:
    assert changes(" M src/jobq/errors.py\n?? notes.txt\n") == ["src/jobq/errors.py", "notes.txt"]
    assert changes("") == []


@pytest.mark.parametrize("version", ["0.2.0", "1.0", "1.10.3"])
def test_a_final_version_has_numbers_only(version: str) -> None:
    assert is_final(version)


@pytest.mark.parametrize("version", ["0.2.0.dev0", "1.0rc1", "1.0a2"])
def test_a_pre_release_is_not_final(version: str) -> None:
    assert not is_final(version)


def test_a_final_version_needs_its_section_in_the_changelog() -> None:
    (problem,) = not_ready("0.2.0", "## [Unreleased]\n\n## [0.1.0]\n", REAL)
    assert "no section [0.2.0]" in problem
    assert not_ready("0.2.0", "## [0.2.0]\n", REAL) == []


def test_a_final_version_needs_real_addresses() -> None:
    (problem,) = not_ready("0.2.0", "## [0.2.0]\n", ["https://jobq.example/docs"])
    assert "placeholders" in problem


def test_a_pre_release_may_lack_both() -> None:
    assert not_ready("0.2.0.dev0", "## [Unreleased]\n", ["https://jobq.example/docs"]) == []


def test_the_quickstart_is_the_first_python_block_of_the_readme() -> None:
    text = "```console\n$ make\n```\n\n```python title='a.py'\nprint(1)\n```\n```python\nno\n```\n"
    assert quickstart(text) == "print(1)\n"
    compile(quickstart((ROOT / "README.md").read_text()), "README.md", "exec")
    with pytest.raises(Refused, match="no Python block"):
        quickstart("# jobq")


def test_a_module_may_lack_only_the_packages_of_its_extra() -> None:
    assert (
        unexpected({"jobq.stores.valkey.connection": "hiredis", "jobq.pipeline": "pyspark"}) == []
    )
    assert unexpected({"jobq.relay.relay": "hiredis"}) == ["jobq.relay.relay (needs hiredis)"]
    assert unexpected({"jobq.stores.valkeys": "hiredis"}) == ["jobq.stores.valkeys (needs hiredis)"]


def test_a_dirty_tree_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "run", lambda *command: "?? notes.txt\n")
    assert release.main([]) == 1
    said = capsys.readouterr().err
    assert "1 files are not committed (notes.txt)" in said
    assert "make release DIRTY=yes" in said


def test_every_heavy_package_belongs_to_an_extra() -> None:
    """The list would check nothing if a name in it were misspelt."""
    declared = (ROOT / "pyproject.toml").read_text()
    brought_by_spark = {"py4j", "numpy"}
    for name in release.HEAVY - brought_by_spark:
        assert f'"{name}' in declared
