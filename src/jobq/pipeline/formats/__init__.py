"""The file formats of a lake: Parquet, Delta and Iceberg. Operations can be repeated after a crash.

base.py      partitions, and the protocol of a format
parquet.py   folders of files, on a local disk
delta.py     Delta tables: transactions, on any file system
iceberg.py   Iceberg tables: snapshots, on any file system or in a catalog
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from jobq.pipeline.formats.base import PARQUET_OPTIONS, Part, Tablespace, any_of, empty
from jobq.pipeline.formats.delta import DeltaSpace
from jobq.pipeline.formats.iceberg import IcebergSpace
from jobq.pipeline.formats.parquet import ParquetSpace
from jobq.pipeline.fs import Files
from jobq.pipeline.session import Format

__all__ = [
    "PARQUET_OPTIONS",
    "DeltaSpace",
    "IcebergSpace",
    "ParquetSpace",
    "Part",
    "Tablespace",
    "any_of",
    "empty",
    "tablespace",
]


def tablespace(
    spark: SparkSession,
    files: Files,
    root: str,
    format: Format,
    staging: str,
    catalog: str | None = None,
) -> Tablespace:
    """The tables under `root`, in this format.

    `staging` is a folder for unfinished files. `catalog` (CATALOG.SCHEMA) is where Delta and
    Iceberg tables are registered."""
    if format == "delta":
        return DeltaSpace(spark, files, root, catalog)
    if format == "iceberg":
        return IcebergSpace(spark, files, root, catalog)
    return ParquetSpace(spark, files, root, staging)
