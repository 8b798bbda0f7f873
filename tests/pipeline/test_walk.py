"""The guide's walk from nothing to a proved lake, and the examples for Airflow and dbt."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from jobq.pipeline.cli import main
from scripts import postgres
from tests.pipeline import quick
from tests.stores.valkey.servers import running as running_valkey
from tests.stores.valkey.servers import valkey_or_skip

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "pipeline.md"


def walk() -> list[str]:
    """The commands of the walk."""
    text = GUIDE.read_text()
    block = re.search(r'^```sh title="walk"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


@contextmanager
def store_url(store: str, folder: Path) -> Iterator[str]:
    if store == "sqlite":
        yield "sqlite:///jobs.db"
    elif store == "valkey":
        with running_valkey(valkey_or_skip(), folder) as server:
            yield server.url
    else:
        with postgres.running(postgres.FAST) as server:
            yield server.url


@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "store",
    [
        "sqlite",
        pytest.param("valkey", marks=pytest.mark.faults),
        pytest.param("postgres", marks=pytest.mark.faults),
    ],
)
def test_the_walk_of_the_guide_ends_with_a_proved_lake(store: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "lake" / "orders.py", tmp_path)
    with store_url(store, tmp_path) as url:
        commands = [
            f"export JQ_URL={shlex.quote(url)}" if line.startswith("export JQ_URL=") else line
            for line in walk()
            if not line.startswith("pip install")
        ]
        binaries = str(Path(sys.executable).parent)
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(commands)],
            cwd=tmp_path,
            env={
                **{name: value for name, value in os.environ.items() if name[:3] != "JQ_"},
                "PATH": f"{binaries}:{os.environ['PATH']}",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_SUBMIT_ARGS": quick.submit_arguments(),
            },
            capture_output=True,
            text=True,
            timeout=650,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "57 orders shipped, 3 failed" in done.stdout
    assert "verdict: proved" in done.stdout
    page = (tmp_path / "report.html").read_text()
    assert "Reject: order" in page
    assert "--where error=" in page


def option_problems(command: str) -> str | None:
    """What jq-pipeline says about a command line, without running it. None if nothing is wrong."""
    words = [re.sub(r"[${}]", "", word) for word in shlex.split(command.split(" > ")[0])]
    words = [re.sub(r"^ ds $", "2026-11-16", word) for word in words]
    assert words[0] == "jq-pipeline"
    chosen = main.commands[words[1]]
    try:
        chosen.make_context(words[1], words[2:])
    except click.UsageError as error:
        return error.format_message()
    return None


def test_the_commands_of_the_airflow_example_exist() -> None:
    """Airflow itself is not installed here, so the DAG is only read."""
    tree = ast.parse((ROOT / "examples" / "airflow" / "jobq_lake.py").read_text())
    commands = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert sorted(commands) == ["AUDIT", "COST", "REPORT", "RUN"]
    assert {name: option_problems(command) for name, command in commands.items()} == dict.fromkeys(
        commands
    )
    assert option_problems("jq-pipeline audit --lak x") is not None


def test_the_dbt_models_run_on_the_tables_of_a_lake(tmp_path: Path) -> None:
    """dbt needs an environment of its own. Its models are SQL with the names of sources."""
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb")
    from jobq.pipeline.tables import ERRORS, TASK_HOUR

    database = duckdb.connect()
    for table in (ERRORS, TASK_HOUR):
        columns = ", ".join(f'"{c.name}" {c.type}' for c in (*table.body, *table.partitions))
        database.execute(f"create table {table.name} ({columns.replace('string', 'varchar')})")
    database.execute(
        """insert into errors by name
           select 'acme' tenant, 'mail' queue, unnest(['send', 'bill']) "name", 'f1' fingerprint,
                  unnest([2, 3]) "final", timestamp '2026-11-16 10:00:00' first_at,
                  timestamp '2026-11-16 11:00:00' last_at, 'KeyError' example"""
    )
    database.execute(
        """insert into task_hour by name
           select 'acme' tenant, 'mail' queue, 'send' "name", 5 runs, unnest([3600000, 1800000])
                  run_ms, 0 lost_ms, date '2026-11-16' "day" """
    )
    models = ROOT / "examples" / "dbt" / "models"
    found = {}
    for model in sorted(models.glob("*.sql")):
        sql = re.sub(r"\{\{ source\('lake', '(\w+)'\) \}\}", r"\1", model.read_text())
        assert "{{" not in sql
        found[model.stem] = database.execute(sql).fetchall()
    ((cause, _, _, tasks, dead, *_),) = found["dead_letters"]
    assert (cause, tasks, dead) == ("acme/mail/f1", "bill, send", 5)
    ((_, _, task, _, runs, hours, lost),) = found["task_cost"]
    assert (task, runs, float(hours), float(lost)) == ("send", 10, 1.5, 0.0)
