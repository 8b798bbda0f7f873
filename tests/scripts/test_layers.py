"""scripts/layers.py finds forbidden imports, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.layers import check, unit_of


def problems(tmp_path: Path, files: dict[str, str]) -> list[str]:
    for name, source in files.items():
        path = tmp_path / "jobq" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return [problem.removeprefix(f"{tmp_path}/jobq/") for problem in check(tmp_path)]


@pytest.mark.parametrize(
    ("module", "unit"),
    [
        ("jobq.core.values.codec", "core.values"),
        ("jobq.core.control", "core"),
        ("jobq.stores", "stores"),
        ("jobq.stores.base", "stores.base"),
        ("jobq.stores.valkey.keys", "stores.valkey"),
        ("jobq.stores.traced", "stores"),
        ("jobq.api.queue", "api"),
        ("jobq.testing", "public"),
        ("jobq", "public"),
    ],
)
def test_a_module_belongs_to_the_longest_unit_that_begins_its_name(module: str, unit: str) -> None:
    assert unit_of(module) == unit


def test_an_allowed_import_is_no_problem(tmp_path: Path) -> None:
    assert (
        problems(
            tmp_path,
            {
                "core/states.py": "from datetime import date\nfrom jobq.errors import JobqError",
                "errors.py": "",
                "stores/base.py": "from jobq.core import states",
                "stores/sqlite/store.py": "import sqlite3\nfrom jobq.stores.base import Store",
                "engine/fetcher.py": "import asyncio\nfrom jobq.stores.base import Store",
                "api/queue.py": "from jobq.engine.fetcher import Fetcher",
                "cli/ctl.py": "import click\nfrom jobq import Queue\nfrom jobq.server import app",
            },
        )
        == []
    )


def test_the_engine_may_not_import_the_public_api(tmp_path: Path) -> None:
    (problem,) = problems(
        tmp_path, {"engine/fetcher.py": "\nfrom jobq.api.queue import Queue", "api/queue.py": ""}
    )
    assert problem.startswith(
        "engine/fetcher.py:2: engine may not import jobq.api.queue (api); it may import core, "
    )


def test_the_client_knows_neither_the_api_nor_the_engine(tmp_path: Path) -> None:
    files = {
        "client/connection.py": "from jobq.api.queue import Queue\nfrom jobq.engine.run import Run",
        "api/queue.py": "",
        "engine/run.py": "",
    }
    assert [problem.split(";")[0] for problem in problems(tmp_path, files)] == [
        "client/connection.py:1: client may not import jobq.api.queue (api)",
        "client/connection.py:2: client may not import jobq.engine.run (engine)",
    ]


def test_an_import_inside_a_function_counts(tmp_path: Path) -> None:
    assert problems(
        tmp_path, {"core/values/codec.py": "def f():\n    from jobq.engine import handles"}
    )


def test_an_import_for_type_checking_does_not_count(tmp_path: Path) -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from jobq.api.queue import Queue\nelse:\n    x = 1"
    )
    assert problems(tmp_path, {"engine/handler.py": source}) == []


def test_a_module_imported_from_its_package_is_the_module(tmp_path: Path) -> None:
    (problem,) = problems(
        tmp_path, {"stores/__init__.py": "from jobq.stores import sqlite", "stores/sqlite.py": ""}
    )
    assert "stores may not import jobq.stores.sqlite" in problem


def test_a_store_imports_no_other_store(tmp_path: Path) -> None:
    (problem,) = problems(
        tmp_path, {"stores/valkey/store.py": "from jobq.stores.sqlite.store import SqliteStore"}
    )
    assert "a store imports no other store" in problem


def test_stores_on_sql_databases_share_their_logic(tmp_path: Path) -> None:
    shared = {"stores/relational/put.py": "from jobq.stores.base import Store"}
    sqlite = {"stores/sqlite/store.py": "from jobq.stores.relational import put"}
    assert problems(tmp_path, shared | sqlite) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("stores/relational/put.py", "from jobq.stores.sqlite.tx import SqliteTx"),
        ("stores/relational/put.py", "import apsw"),
        ("stores/valkey/store.py", "from jobq.stores.relational import put"),
        ("engine/fetcher.py", "from jobq.stores.relational import put"),
    ],
)
def test_the_shared_logic_knows_no_dialect_and_serves_no_other_layer(
    path: str, source: str, tmp_path: Path
) -> None:
    assert len(problems(tmp_path, {path: source, "stores/relational/__init__.py": ""})) == 1


def test_a_driver_stays_in_its_package(tmp_path: Path) -> None:
    files = {
        "stores/valkey/store.py": "import redis.asyncio",
        "engine/fetcher.py": "from redis import Redis",
    }
    (problem,) = problems(tmp_path, files)
    assert (
        problem == "engine/fetcher.py:1: redis is the Valkey driver and belongs in stores.valkey, "
        "not in engine"
    )


@pytest.mark.parametrize(
    "source",
    ["import asyncio", "import time", "from os import urandom", "import concurrent.futures"],
)
def test_core_imports_nothing_that_does_io(tmp_path: Path, source: str) -> None:
    (problem,) = problems(tmp_path, {"core/rules/decide.py": source})
    assert "core is pure" in problem


@pytest.mark.parametrize(
    "source", ["datetime.now(UTC)", "datetime.datetime.utcnow()", "date.today()"]
)
def test_core_reads_no_clock(tmp_path: Path, source: str) -> None:
    (problem,) = problems(tmp_path, {"core/rules/cron.py": source})
    assert "core reads no clock" in problem


@pytest.mark.parametrize("unit", ["pipeline", "server", "cli"])
def test_nothing_imports_pipeline_server_or_cli(tmp_path: Path, unit: str) -> None:
    assert (
        len(
            problems(
                tmp_path,
                {
                    "api/worker.py": f"import jobq.{unit}",
                    "relay/run.py": f"from jobq.{unit} import x",
                },
            )
        )
        == 2
    )


def test_server_and_web_share_access_and_do_not_import_each_other(tmp_path: Path) -> None:
    files = {
        "access/guarded/store.py": "from jobq.server.host import Host\nfrom jobq.web import site",
        "server/host.py": "from jobq.access import guard\nfrom jobq.web.site import app",
        "web/site.py": "from jobq.access import guard\nfrom jobq.server.host import Host",
    }
    assert [problem.split(" (")[0] for problem in problems(tmp_path, files)][:4] == [
        "access/guarded/store.py:1: access may not import jobq.server.host",
        "access/guarded/store.py:2: access may not import jobq.web.site",
        "server/host.py:2: server may not import jobq.web.site",
        "web/site.py:2: web may not import jobq.server.host",
    ]


def test_modules_that_import_each_other_are_named_together(tmp_path: Path) -> None:
    files = {
        "api/a.py": "from jobq.api.b import B",
        "api/b.py": "from jobq.api import c",
        "api/c.py": "def late():\n    from jobq.api.a import A",
        "api/d.py": "from jobq.api.a import A",
    }
    assert problems(tmp_path, files) == [
        "api/a.py:1: these modules import each other: jobq.api.a, jobq.api.b, jobq.api.c"
    ]


def test_modules_of_one_package_may_name_each_others_types(tmp_path: Path) -> None:
    files = {
        "api/a.py": "from jobq.api.b import B",
        "api/b.py": "if TYPE_CHECKING:\n    from jobq.api.a import A",
    }
    assert problems(tmp_path, files) == []


def test_packages_do_not_import_each_other_not_even_for_types(tmp_path: Path) -> None:
    files = {
        "api/a.py": "from jobq.core.b import B",
        "core/b.py": "from jobq.core.c import C",
        "core/c.py": "if TYPE_CHECKING:\n    from jobq.api.a import A",
        "core/d.py": "from jobq.core.b import B",
    }
    assert problems(tmp_path, files) == [
        "api/a.py:1: modules of several packages import each other, if only for types: "
        "jobq.api.a, jobq.core.b, jobq.core.c"
    ]


def test_two_cycles_are_two_problems(tmp_path: Path) -> None:
    files = {
        "api/a.py": "import jobq.api.b",
        "api/b.py": "import jobq.api.a",
        "core/c.py": "import jobq.core.d\nimport jobq.core.e",
        "core/d.py": "import jobq.core.c",
        "core/e.py": "",
    }
    assert [problem.split(": ")[-1] for problem in problems(tmp_path, files)] == [
        "jobq.api.a, jobq.api.b",
        "jobq.core.c, jobq.core.d",
    ]


def test_a_record_may_not_know_a_rule(tmp_path: Path) -> None:
    files = {"core/records/jobs.py": "from jobq.core.rules import locks", "core/rules/locks.py": ""}
    (problem,) = problems(tmp_path, files)
    assert problem.startswith("core/records/jobs.py:1: core.records may not import")


def test_a_folder_is_neither_crowded_nor_deep(tmp_path: Path) -> None:
    files = {f"api/m{n}.py": "" for n in range(28)}
    assert problems(tmp_path, {**files, "api/__init__.py": "", "api/a/b/c.py": ""}) == [
        "api: more than 28 entries: group them by meaning"
    ]
    assert problems(tmp_path, {"web/a/b/c/d.py": ""})[1:] == [
        "web/a/b/c: more than 3 levels below jobq"
    ]
