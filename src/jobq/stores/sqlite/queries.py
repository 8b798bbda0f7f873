"""SQL lives in sql/*.sql as named blocks: `-- name: what it does`. `load("hot.sql")["claim"]` is the statement."""

from __future__ import annotations

from importlib.resources import files


def read(file: str) -> str:
    """A file of the sql folder."""
    return files("jobq.stores.sqlite").joinpath("sql", file).read_text("utf-8")


def load(file: str) -> dict[str, str]:
    """The named blocks of a file. A name appears once; text before the first name is the file's introduction."""
    blocks: dict[str, str] = {}
    for block in read(file).split("\n-- name: ")[1:]:
        head, _, body = block.partition("\n")
        name = head.split(":")[0].strip()
        if name in blocks:
            raise ValueError(f"{file}: the name {name!r} appears twice")
        blocks[name] = body.strip()
    return blocks
