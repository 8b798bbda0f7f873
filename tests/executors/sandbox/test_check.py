"""What a machine cannot enforce is known before a task starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobq import Permissions
from jobq.cli.worker import main
from jobq.executors import sandbox
from jobq.executors.sandbox import kernel as kernels
from jobq.executors.sandbox.kernel import Kernel, features, missing

GUIDE = Path(__file__).parents[3] / "docs/guide/permissions.md"
MODERN = Kernel(landlock=6, seccomp=True, root=False, counts_processes=True)


def lacking(permissions: Permissions, **differs: object) -> str:
    fields = {**MODERN.__dict__, **differs}
    return "; ".join(kernels.missing_features(permissions, Kernel(**fields)))


def test_a_modern_kernel_lacks_nothing() -> None:
    assert lacking(Permissions(network=[443], processes=4, memory="1G", cpu=1)) == ""


@pytest.mark.parametrize(
    ("permissions", "differs", "words"),
    [
        (Permissions(), {"landlock": 0}, "Landlock is missing"),
        (Permissions(network=[443]), {"landlock": 3}, "TCP ports cannot be restricted"),
        (Permissions(), {"seccomp": False}, "no seccomp filters"),
        (Permissions(processes=1), {"counts_processes": False}, "may not make user namespaces"),
        (
            Permissions(processes=1),
            {"counts_processes": False, "root": True},
            "run it as an ordinary user",
        ),
    ],
)
def test_what_a_kernel_lacks_is_named(
    permissions: Permissions, differs: dict[str, object], words: str
) -> None:
    assert words in lacking(permissions, **differs)


@pytest.mark.parametrize("differs", [{"landlock": 3}, {"counts_processes": False}])
def test_only_what_is_asked_for_has_to_be_there(differs: dict[str, object]) -> None:
    assert lacking(Permissions(network=True, memory="1G"), **differs) == ""


def test_another_system_is_refused_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert missing(Permissions(), MODERN) == ["permissions need Linux, and this is Darwin"]


def test_the_sandbox_can_be_imported_where_python_has_no_resource_limits() -> None:
    code = "import sys; sys.modules['resource'] = None; import jobq.executors.sandbox"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_path_that_does_not_exist_is_reported() -> None:
    assert "there is no /nowhere, which read= names" in missing(
        Permissions(read=["/nowhere"]), MODERN
    )


def test_code_beside_other_data_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that starts in / has / on its path, and all code on it is readable."""
    monkeypatch.setattr(sys, "path", [*sys.path, "/"])
    assert any(
        m.startswith("/ is on sys.path and holds more than code")
        for m in missing(Permissions(), MODERN)
    )


def test_a_child_refuses_what_cannot_be_enforced() -> None:
    code = (
        "from jobq import ConfigError, Permissions; from jobq.executors import sandbox\n"
        "try: sandbox.apply(Permissions(read=['/nowhere']))\n"
        "except ConfigError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "there is no /nowhere, which read= names" in said.stdout


def test_check_sandbox_prints_each_permission_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "jobq.executors.sandbox.kernel.this_kernel",
        lambda: Kernel(landlock=3, seccomp=True, root=False, counts_processes=False),
    )
    result = CliRunner().invoke(main, ["--check-sandbox"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert "Landlock 3" in lines[0]
    assert [line[:3] for line in lines if "  needs " in line] == [
        "yes",
        "yes",
        "no ",
        "yes",
        "yes",
        "yes",
        "no ",
    ]
    assert "TCP ports cannot be restricted" in result.output


def test_check_sandbox_needs_no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobq.executors.sandbox.kernel.this_kernel", lambda: MODERN)
    result = CliRunner().invoke(main, ["--check-sandbox"])
    assert (result.exit_code, "enforces all permissions" in result.output) == (0, True)


def test_the_guide_has_the_same_table() -> None:
    guide = GUIDE.read_text()
    for feature in features(MODERN):
        assert f"| `{feature.permission}` | {feature.needs} |" in guide


def test_variables_are_those_that_python_needs_and_those_that_are_named() -> None:
    present = {"PATH": "/bin", "PYTHONPATH": "x", "LC_ALL": "C", "AWS_SECRET": "s", "API_KEY": "k"}
    found = sandbox.environment(Permissions(env=["API_KEY"]), present)
    assert found == {"PATH": "/bin", "PYTHONPATH": "x", "LC_ALL": "C", "API_KEY": "k"}
    assert "MALLOC_ARENA_MAX" in sandbox.environment(Permissions(memory="1G"), {})
    assert sandbox.environment(Permissions(network=[53]), {}) == {"RES_OPTIONS": "use-vc"}


def test_a_child_knows_its_stores_without_their_passwords_unless_it_may() -> None:
    """A handler could return a password as its result."""
    urls = {"billing": "valkey://app:secret@cache:6379"}
    hidden = {"billing": "valkey://app:***@cache:6379"}
    assert sandbox.visible_urls(Permissions(), urls) == hidden
    assert sandbox.visible_urls(Permissions(network=True, env=["JQ_URL"]), urls) == urls


def test_this_process_is_not_restricted_by_the_questions() -> None:
    sandbox.check(Permissions(processes=1, network=[443]))
    assert os.listdir("/")
