"""Read a lake with DuckDB and with pandas, without Spark: `python other_engines.py LAKE`.

Needs `pip install duckdb pandas pyarrow` besides jobq."""

from __future__ import annotations

import sys
from typing import Any

import duckdb
import pyarrow.dataset as ds

from jobq.pipeline.parquet_files import data_files


def with_duckdb(lake: str) -> list[tuple[Any, ...]]:
    """Failures per task, by SQL."""
    query = """
        SELECT name, count(*) AS failures
        FROM read_parquet($files, hive_partitioning = true, union_by_name = true)
        WHERE kind IN ('retried', 'failed')
        GROUP BY name ORDER BY failures DESC
    """
    with duckdb.connect() as connection:
        return connection.execute(query, {"files": data_files(lake, "events")}).fetchall()


def with_pandas(lake: str) -> Any:
    """The latest events as a DataFrame of pandas. `day` and `hour` are from the folders' names."""
    events = ds.dataset(data_files(lake, "events"), partitioning="hive")
    frame = events.to_table(columns=["at", "kind", "queue", "job", "day", "hour"]).to_pandas()
    return frame.sort_values("at").tail(10)


if __name__ == "__main__":
    print(with_duckdb(sys.argv[1]))
    print(with_pandas(sys.argv[1]))
