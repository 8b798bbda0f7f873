"""Loads the SQL statements of a dialect.

They live in the dialect's sql/*.sql as named blocks: `-- name: what it does`, then the statement.
All dialects have the same files and names, and each statement takes the same parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

import msgspec


class Statements(msgspec.Struct, frozen=True):
    """The statements that the shared logic uses: by file, then by name."""

    hot: dict[str, str]
    keyed: dict[str, str]
    ties: dict[str, str]
    upkeep: dict[str, str]
    queues: dict[str, str]
    reads: dict[str, str]
    signals: dict[str, str]
    schedules: dict[str, str]
    holds: dict[str, str]
    presence: dict[str, str]


def load_all(package: str, columns: Mapping[str, str]) -> Statements:
    """The statements of a dialect's package."""
    return Statements(
        *(load(package, f"{name}.sql", columns) for name in Statements.__struct_fields__)
    )


def load(package: str, file: str, columns: Mapping[str, str]) -> dict[str, str]:
    """The statements of a file by name, with `columns` in place of names in braces.

    Text before the first name introduces the file. ValueError: a name appears twice."""
    text = files(package).joinpath("sql", file).read_text("utf-8")
    blocks: dict[str, str] = {}
    for block in text.split("\n-- name: ")[1:]:
        head, _, body = block.partition("\n")
        name = head.split(":")[0].strip()
        if name in blocks:
            raise ValueError(f"{file}: the name {name!r} appears twice")
        blocks[name] = re.sub(r"\{(\w+)\}", lambda found: columns[found[1]], body.strip())
    return blocks
