"""What a command cannot do, it says in one line, and it leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from jobq.pipeline import cli


@pytest.fixture
def where(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table of one row. Commands use the session of the tests."""
    monkeypatch.setattr(cli, "open_session", lambda *_, **__: spark)
    (tmp_path / "rows.json").write_text('{"invoice": 1}')
    return tmp_path


def said(where: Path, command: str) -> Result:
    """Run it; `@` stands for the folder."""
    return CliRunner().invoke(cli.main, command.replace("@", str(where)).split())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "run --once --lake @/lake --source files://@/missing",
            "there are no events to read in @/missing",
        ),
        ("run --once --lake @/lake --source valkey://localhost:1", "no answer from localhost:1"),
        (
            "load @/missing.parquet --queue q --task t --url sqlite:///@/jobs.db",
            "missing.parquet cannot be read as parquet",
        ),
        (
            "load @/rows.json --format json --queue q --task t --url valkey://localhost:1",
            "no answer from localhost:1",
        ),
        (
            "load @/rows.json --format json --queue q --task t --url sqlite:///@/jobs.db --id invoce",
            "there is no column 'invoce' (did you mean 'invoice'?)",
        ),
        (
            "load @/rows.json --format json --queue q --task t --url sqlite:///@/jobs.db --sql nonsense",
            "--sql: ",
        ),
        (
            "report --lake @/lake --out @/report.html --since 15.11.2026",
            "'15.11.2026' is not a day: YYYY-MM-DD",
        ),
        ("rebuild --lake @/lake --since yesterday", "'yesterday' is not a day: YYYY-MM-DD"),
    ],
)
def test_what_was_asked_for_wrongly_is_said_in_one_line(
    where: Path, command: str, says: str
) -> None:
    done = said(where, command)
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit), done.exception
    last = done.output.splitlines()[-1]
    assert last.startswith("Error: ")
    assert says.replace("@", str(where)) in last


@pytest.mark.parametrize(
    "command",
    [
        "audit",
        "audit --store sqlite:///@/jobs.db",
        "report --out @/r.html",
        "rebuild",
        "compact",
        "retention --keep-days 3",
    ],
)
def test_a_folder_that_is_no_lake_is_an_error_and_is_not_made(where: Path, command: str) -> None:
    done = said(where, f"{command} --lake @/typo")
    assert (done.exit_code, done.output.splitlines()[-1]) == (
        1,
        f"Error: there is no lake in {where}/typo: `jq-pipeline run` makes one",
    )
    assert not (where / "typo").exists()
