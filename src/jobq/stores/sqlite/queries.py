"""Loads SQL statements.

They live in sql/*.sql as named blocks: `-- name: what it does`, then the statement."""

from __future__ import annotations

import re
from importlib.resources import files

from jobq.stores.sqlite.columns import COLUMNS


def read(file: str) -> str:
    """The text of a file of the sql folder."""
    return files("jobq.stores.sqlite").joinpath("sql", file).read_text("utf-8")


def load(file: str) -> dict[str, str]:
    """The statements of a file by name, with the column lists of columns.py in place of names in
    braces.

    Text before the first name introduces the file. ValueError: a name appears twice."""
    blocks: dict[str, str] = {}
    for block in read(file).split("\n-- name: ")[1:]:
        head, _, body = block.partition("\n")
        name = head.split(":")[0].strip()
        if name in blocks:
            raise ValueError(f"{file}: the name {name!r} appears twice")
        blocks[name] = re.sub(r"\{(\w+)\}", lambda found: COLUMNS[found[1]], body.strip())
    return blocks
