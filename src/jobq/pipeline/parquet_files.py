"""The files of a Parquet lake's table, for engines other than Spark. Needs no Spark itself.

A folder that `run` writes to may contain files of a batch that is not complete yet, and a partition
may be in the middle of being replaced. `data_files` returns the files of complete batches only, so
DuckDB, pandas and others read what Spark would read.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from jobq.errors import ConfigError

_EACH_S = 0.1  # seconds between two looks at a lake that is being changed


def data_files(lake: str | Path, table: str, *, timeout: float = 30.0) -> list[str]:
    """The Parquet files that make up a table of a lake on a local disk, sorted.

    Waits up to `timeout` seconds while partitions of the table are being replaced. If one is
    replaced after that, a file of the list is missing: call this again.

    ConfigError if the folder is not a lake, if the table does not exist, or if the lake has another
    format, whose own readers see complete tables only."""
    root = Path(str(lake).removeprefix("file://"))
    end = time.monotonic() + timeout
    while True:
        state = _state(root)
        found = _files(root / table, state)
        swapping = (root / "_jobq" / "swaps" / f"{table}.json").exists()
        if not swapping and _state(root) == state:
            return found
        if time.monotonic() > end:
            raise ConfigError(
                f"{root / table} is still being changed after {timeout:g} s: if the command that "
                "changes it has died, `jq-pipeline run` or `compact` finishes its work"
            )
        time.sleep(_EACH_S)


def _state(root: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((root / "_jobq" / "state.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no lake in {root}: `jq-pipeline run` creates one") from None
    if (format := state.get("format", "parquet")) != "parquet":
        raise ConfigError(
            f"the lake {root} has the format {format}: read its tables with a reader of {format}, "
            "which sees complete tables only"
        )
    return state


def _files(folder: Path, state: dict[str, Any]) -> list[str]:
    if not folder.is_dir():
        known = sorted(path.name for path in folder.parent.glob("[!_.]*") if path.is_dir())
        raise ConfigError(f"there is no table {folder.name!r}: the lake has {', '.join(known)}")
    pending = state.get("pending")
    # The files of a batch begin with its name (`lake.Batch`).
    unfinished = f"{pending['run']}-{pending['number']:09d}-" if pending else None
    return sorted(
        str(path)
        for path in folder.rglob("*.parquet")
        if not path.name.startswith((".", "_"))
        and not (unfinished and path.name.startswith(unfinished))
    )
