"""DuckDB and pandas read the complete batches of a lake, by examples/lake/other_engines.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jobq.errors import ConfigError
from jobq.pipeline.parquet_files import data_files

pytest.importorskip("duckdb", reason="needs duckdb: pip install 'jobq[dev]'")

from examples.lake.other_engines import with_duckdb, with_pandas


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with two batches, the second of which is being published."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows: dict[str, list[Any]] = {
        "kind": ["failed", "completed"], "name": ["send"] * 2, "queue": ["mail"] * 2,
        "job": ["a", "b"], "at": [1, 2],
    }  # fmt: skip
    folder = tmp_path / "lake" / "events" / "day=2025-11-15" / "hour=1"
    folder.mkdir(parents=True)
    (tmp_path / "lake" / "_jobq").mkdir()
    for number in range(2):
        pq.write_table(pa.table(rows), folder / f"run1-{number:09d}-part-0.parquet")
    write_state(tmp_path / "lake", pending={"run": "run1", "number": 1})
    return tmp_path / "lake"


def write_state(lake: Path, **state: Any) -> None:
    (lake / "_jobq" / "state.json").write_text(json.dumps({"format": "parquet", **state}))


def test_files_of_an_unfinished_batch_are_left_out(lake: Path) -> None:
    assert with_duckdb(str(lake)) == [("send", 1)]
    assert list(with_pandas(str(lake)).job) == ["a", "b"]
    write_state(lake)
    assert with_duckdb(str(lake)) == [("send", 2)]
    assert [str(day) for day in with_pandas(str(lake)).day.unique()] == ["2025-11-15"]


def test_a_table_that_is_being_replaced_is_not_read(lake: Path) -> None:
    (lake / "_jobq" / "swaps").mkdir()
    (lake / "_jobq" / "swaps" / "events.json").write_text("{}")
    with pytest.raises(ConfigError, match="still being changed"):
        data_files(lake, "events", timeout=0)
    shutil.rmtree(lake / "_jobq" / "swaps")
    assert len(data_files(lake, "events", timeout=0)) == 1


def test_what_is_no_parquet_table_is_an_error(lake: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no table 'evens': the lake has events"):
        data_files(lake, "evens")
    with pytest.raises(ConfigError, match="there is no lake"):
        data_files(tmp_path, "events")
    write_state(lake, format="delta")
    with pytest.raises(ConfigError, match="has the format delta"):
        data_files(lake, "events")
