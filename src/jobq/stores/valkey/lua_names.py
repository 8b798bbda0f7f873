"""The names of keys and packed fields, read from lua/keys.lua and lua/fields.lua.

Lua and Python share these definitions. A definition is a line `TABLE.name = value`. `with_values`
replaces the names in a Lua file by their values, so the server executes constants and looks up no
names.
"""

from __future__ import annotations

import re
from pathlib import Path

LUA = Path(__file__).parent / "lua"
DEFINITIONS = ("keys", "fields")
"""The Lua files that hold definitions and no code."""

_DEFINITION = re.compile(r'^([A-Z_]+)\.([a-z0-9_]+) = ("[^"]*"|\d+)(?: --.*)?$')


def _read() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    for file in DEFINITIONS:
        for line in (LUA / f"{file}.lua").read_text().splitlines():
            if line and not line.startswith("--"):
                found = _DEFINITION.match(line)
                if found is None:
                    raise ValueError(f"lua/{file}.lua has a line that is not a definition: {line}")
                table, name, value = found.groups()
                tables.setdefault(table, {})[name] = value
    return tables


TABLES = _read()
"""Every definition, by table and name. Values are Lua literals."""

_USE = re.compile(rf"(?<![\w.])({'|'.join(TABLES)})\.([a-z0-9_]+)")


def with_values(text: str) -> str:
    """The text of a Lua file with the value of each definition in place of its name."""
    return _USE.sub(lambda found: TABLES[found[1]][found[2]], text)


def texts(table: str) -> dict[str, str]:
    """The definitions of a table whose values are text."""
    return {name: value[1:-1] for name, value in TABLES[table].items() if value[0] == '"'}


def numbers(table: str) -> dict[str, int]:
    """The definitions of a table whose values are numbers."""
    return {name: int(value) for name, value in TABLES[table].items() if value[0] != '"'}
