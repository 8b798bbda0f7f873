"""A jq-pipeline command that cannot work prints a one-line error and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from jobq.pipeline.cli import group, main


@pytest.fixture
def where(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table of one row. Commands use the session of the tests."""
    monkeypatch.setattr(group, "open_session", lambda *_, **__: spark)
    (tmp_path / "rows.json").write_text('{"invoice": 1}')
    return tmp_path


def run(where: Path, command: str) -> Result:
    """Run a command line in which `@` stands for the folder."""
    return CliRunner().invoke(main, command.replace("@", str(where)).split())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "run --once --lake @/lake --source files://@/missing",
            "no events to read in @/missing",
        ),
        ("run --once --lake @/lake --source sqlite:///@/typo.db", "typo.db does not exist"),
        ("run --once --lake @/lake --source valkey://localhost:1", "no reply from localhost:1"),
        (
            "load @/missing.parquet --queue q --task t --url sqlite:///@/jobs.db",
            "missing.parquet as parquet",
        ),
        (
            "load @/rows.json --format json --queue q --task t --url valkey://localhost:1",
            "no reply from localhost:1",
        ),
        (
            "load @/rows.json --format json --queue q --task t --url sqlite:///@/jobs.db "
            "--id invoce",
            "there is no column 'invoce' (did you mean 'invoice'?)",
        ),
        (
            "load @/rows.json --format json --queue q --task t --url sqlite:///@/jobs.db "
            "--sql nonsense",
            "--sql: ",
        ),
        (
            "report --lake @/lake --out @/report.html --since 15.11.2026",
            "'15.11.2026' is not a date: use YYYY-MM-DD",
        ),
        ("rebuild --lake @/lake --since yesterday", "'yesterday' is not a date: use YYYY-MM-DD"),
    ],
)
def test_a_wrong_option_or_an_unusable_input_is_a_one_line_error(
    where: Path, command: str, says: str
) -> None:
    done = run(where, command)
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
def test_a_folder_that_is_not_a_lake_is_an_error_and_is_not_created(
    where: Path, command: str
) -> None:
    done = run(where, f"{command} --lake @/typo")
    could_not_run = 3 if command.startswith("audit") else 1  # 1 of an audit means violated
    assert (done.exit_code, done.output.splitlines()[-1]) == (
        could_not_run,
        f"Error: there is no lake in {where}/typo: `jq-pipeline run` creates one",
    )
    assert not (where / "typo").exists()
