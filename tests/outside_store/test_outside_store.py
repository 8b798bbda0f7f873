"""A store of another package: found by its URL, and held to the contract by the conformance
suite.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.errors import ConfigError
from jobq.stores import base, open_store
from jobq_conformance.roles import ROLES, needs, roles_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the dict store is installed."""
    monkeypatch.syspath_prepend(str(HERE))


def conformance(
    *arguments: str, folder: Path, hidden: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the suite as an author of a store would, in a folder of their own.

    `hidden`: a package that is not installed.
    """
    path = os.pathsep.join([str(HERE), str(ROOT / "src")])
    command = [sys.executable, "-m", "jobq.stores.conformance", *arguments]
    if hidden:
        (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules[{hidden!r}] = None\n")
        path = f"{folder}{os.pathsep}{path}"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The block of roles: what it says the store has, and lacks."""
    words = [
        line.split(maxsplit=1)
        for line in done.stdout.splitlines()
        if line.startswith(("has ", "lacks "))
    ]
    return {word: rest.split(", ") for word, rest in words}


@pytest.mark.usefixtures("installed")
async def test_a_store_of_another_package_is_opened_by_its_url() -> None:
    async with open_store("dict://here", clock=lambda: 7) as store:
        assert (type(store).__name__, store.url) == ("DictStore", "dict://here")


def test_an_unknown_scheme_names_the_known_ones_and_the_extra() -> None:
    with pytest.raises(
        ConfigError, match=r"no store for 'dict://x'.*memory, sqlite, valkey.*jobq\[valkey\]"
    ):
        open_store("dict://x")


@pytest.mark.usefixtures("installed")
def test_schemes_of_other_packages_are_named_among_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"known schemes are .*, dict \("):
        open_store("nobody://x")


@pytest.mark.parametrize(
    ("value", "says"),
    [("nowhere:open", "No module named 'nowhere'"), ("math:pi", "not a callable")],
)
def test_a_store_that_cannot_be_loaded_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, says: str
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[jobq.stores]\nbroken = {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=says):
        open_store("broken://x")


def test_the_suite_runs_on_it_names_the_roles_it_lacks_and_passes(tmp_path: Path) -> None:
    done = conformance("dict://suite", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines(done) == {"has": ["jobs"], "lacks": [role for role in ROLES if role != "jobs"]}
    assert "The store passes the tests of the roles it has." in done.stdout
    assert "failed" not in done.stdout
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed >= 15


def test_a_store_that_breaks_its_promise_is_found(tmp_path: Path) -> None:
    source = (HERE / "dict_store.py").read_text()
    assert source.count("line.appendleft(key)") == 1
    (tmp_path / "dict_store.py").write_text(
        source.replace("line.appendleft(key)", "line.append(key)")
    )
    done = conformance("dict://suite", "-k", "released", folder=tmp_path)
    assert done.returncode == 1
    assert "test_a_released_job_goes_to_the_front_at_no_cost" in done.stdout
    assert "The store fails the tests of the roles it has." in done.stdout


def test_the_hook_empties_the_store_before_each_test(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(
        "def empty(url):\n    open('emptied', 'a').write(url + '\\n')\n"
    )
    done = conformance(
        "dict://suite",
        "--empty",
        "hooks:empty",
        "-k",
        "read_in_the_order or lease_settles_once",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "emptied").read_text().splitlines() == ["dict://suite"] * 2


def test_jobs_of_an_earlier_run_do_not_disturb_the_tests(tmp_path: Path) -> None:
    """Except where a test compares times: those of the earlier run are later than the clock of the
    tests, and the time of a store never goes back.
    """
    times = "can_be_read or says_what_its_job_is or has_its_result"
    chosen = f"lost_replies or (basics and not ({times}))"
    for _ in range(2):
        done = conformance(f"sqlite:///{tmp_path}/kept.db", "-k", chosen, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody://x"], "no store for"),
        (["dict://x", "--empty", "nonsense"], "package.module:function"),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = conformance(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_pytest_it_says_what_to_install(tmp_path: Path) -> None:
    done = conformance("dict://x", folder=tmp_path, hidden="pytest_asyncio")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "the conformance suite needs pytest_asyncio, which is not installed: "
        "pip install 'jobq[conformance]'\n"
    )


# ── roles ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_method_of_the_contract_belongs_to_a_role() -> None:
    contract = {
        name
        for role in (*base.Store.__mro__, base.Pipelined)
        for name in vars(role)
        if not name.startswith("_")
    }
    assert contract == {method for methods in ROLES.values() for method in methods}


def test_the_stores_of_jobq_have_every_role() -> None:
    assert (
        roles_of(open_store("memory://roles"))
        == roles_of(open_store("valkey://nowhere"))
        == ROLES.keys()
    )


def test_a_role_that_a_store_names_must_be_there() -> None:
    class Boasting:
        roles = ("jobs", "schedules")
        migrate = aclose = put = settle = get = put_schedule = fire = None

    with pytest.raises(
        ValueError,
        match="'schedules', for which it lacks drop_schedule, pause_schedule, list_schedules",
    ):
        roles_of(Boasting())
    Boasting.roles = ("jobs", "wings")
    with pytest.raises(ValueError, match="'wings', which is no role"):
        roles_of(Boasting())


def test_a_test_cannot_need_a_role_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no role 'wings'"):
        needs("wings")
