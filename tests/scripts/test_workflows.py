"""CI and the commit hooks call what there is: make targets, scripts, Pythons, stores."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobq_conformance.places import DEFAULT_PLACES

ROOT = Path(__file__).parents[2]
CI = ROOT / ".github/workflows/ci.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
MATRIX = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def cells(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a job: the cells of its matrix, or else one."""
    matrix = job.get("strategy", {}).get("matrix", {})
    if "include" in matrix:
        assert list(matrix) == ["include"]
        included: list[dict[str, Any]] = matrix["include"]
        return included
    return [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]


def commands(job: dict[str, Any]) -> Iterator[str]:
    """What a job runs, once for every cell of its matrix."""
    for cell in cells(job):
        for step in job["steps"]:
            if "run" in step:
                yield _filled(step["run"], cell)


def _filled(command: str, cell: dict[str, Any]) -> str:
    return MATRIX.sub(lambda found: str(cell[found[1]]), command)


def test_there_are_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "nightly", "release"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_make_target_that_a_workflow_calls_exists(path: Path) -> None:
    called = {
        target
        for job in jobs(path).values()
        for command in commands(job)
        for target in re.findall(r"\bmake ([a-z-]+)", command)
    }
    assert called
    assert called <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_major_version(path: Path) -> None:
    for job in jobs(path).values():
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_job_ends_after_some_time_and_may_only_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for job in jobs(path).values():
        assert job["timeout-minutes"] <= 180


def test_ci_runs_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if line.startswith(prefix)]
    runs = cells(jobs(CI)["stores"])
    assert {run["python"] for run in runs} == set(named)
    assert project["requires-python"] == f">={named[0]}"
    assert {run["os"].partition("-")[0] for run in runs} == {"ubuntu", "macos"}


def test_ci_runs_every_store_of_the_suite_once_on_linux() -> None:
    runs = [run for run in cells(jobs(CI)["stores"]) if run["os"].startswith("ubuntu")]
    stores = [store for run in runs for store in run["stores"].split()]
    assert sorted(stores) == sorted(DEFAULT_PLACES)


def test_a_push_starts_few_jobs() -> None:
    """Each Python, store and system is tested once. A product of them was 48 jobs."""
    assert sum(len(cells(job)) for job in jobs(CI).values()) <= 11


def test_every_commit_hook_runs_what_make_check_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    checked = (ROOT / "Makefile").read_text()
    for hook in hooks:
        command, *arguments = hook["entry"].split()
        assert command.startswith(".venv/bin/")
        if command == ".venv/bin/python":
            assert (ROOT / arguments[0]).is_file()
        if hook.get("stages") != ["commit-msg"]:
            tool = arguments[0] if arguments and arguments[0].startswith("scripts/") else command
            assert tool.removeprefix(".venv/bin/") in checked
    assert [hook["id"] for hook in hooks if hook.get("stages")] == ["commit-message"]


def test_every_target_has_its_line_in_make_help_and_is_phony() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == TARGETS
