"""The function library: its version and text, and that it is loaded when it is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jobq.stores.valkey.library as library
from jobq.core.records.jobs import QueueName
from jobq.stores.valkey import jobs
from jobq.stores.valkey.keys import DEFINITIONS, TABLES, with_values
from jobq.stores.valkey.store import ValkeyStore
from jobq.stores.valkey.stored_job import StoredOptions
from tests.stores.valkey.jobs import spec, take
from tests.stores.valkey.servers import Server

RELEASED = {"jobq_v1": "6dbbc4c0950e1c6e"}
"""Versions that a release has shipped, and their digests. `make release` names the line to add."""
LISTED = Path(__file__).with_name("library.txt")
LUA = Path(library.__file__).parent / "lua"
FILES = sorted(LUA.glob("*.lua"))


def test_every_edit_of_the_library_is_a_decision() -> None:
    """It changed: is data of the old text still understood, and do old workers still work beside
    new ones?

    Yes: `python -m tests.stores.valkey.test_library` writes the new digest into library.txt. No:
    raise VERSION as well.
    """
    assert f"{library.VERSION} {library.DIGEST}" == LISTED.read_text().strip()


def test_a_released_library_never_changes() -> None:
    """Releases that run side by side call functions of different names, each with its own text."""
    released = RELEASED.get(library.VERSION, library.DIGEST)
    assert released == library.DIGEST, "a release has this version: raise VERSION in library.py"


def test_the_library_contains_all_files() -> None:
    assert {path.stem for path in FILES} == {*library.FILES, *DEFINITIONS, "register"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_opens_with_what_it_is_for(path: Path) -> None:
    assert path.read_text().startswith(f"-- {path.stem}: ")
    assert len(path.read_text().splitlines()) < 400


def test_every_function_has_its_contract() -> None:
    names = re.findall(r'register\("(\w+)"', (LUA / "register.lua").read_text())
    text = "".join(path.read_text() for path in FILES)
    assert len(names) > 30
    for name in names:
        header = rf"^-- {name}[.:][^\n]*(\n--[^\n]*)*KEYS[^\n]*(\n--[^\n]*)*\nfunction J\.{name}\("
        assert re.search(header, text, re.MULTILINE), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lines_are_at_most_100_characters_long(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_takes_keys_and_positions_from_the_definitions(path: Path) -> None:
    code = re.sub(r"--[^\n]*", "", path.read_text())
    keys = re.findall(r'(?:prefix|keys\[1\]) \.\. "[^"\\]+"', code)
    positions = re.findall(r"\b(?:rec|run|body):(?:sub|byte)\(\d{2,}", code)
    formats = re.findall(r'">[BI]\w+I\w*"', code) if path.stem not in DEFINITIONS else []
    assert [*keys, *positions, *formats] == []


def test_every_definition_is_used() -> None:
    sources = [path for path in FILES if path.stem not in DEFINITIONS]
    code = "".join(re.sub(r"--[^\n]*", "", path.read_text()) for path in sources)
    python = "".join(path.read_text() for path in LUA.parent.glob("*.py"))
    unused = [
        f"{table}.{name}"
        for table, names in TABLES.items()
        for name in names
        if not re.search(rf"\b{table}\.{name}\b", code) and f'"{name}"' not in python
    ]
    assert unused == []


def test_a_name_that_is_not_defined_does_not_reach_the_server() -> None:
    with pytest.raises(KeyError, match="no_such_key"):
        with_values("call('GET', cx.prefix .. KEY.no_such_key)")


def test_copies_of_rules_name_functions_that_core_has() -> None:
    text = "".join(path.read_text() for path in FILES).replace("\n--", "")
    named = re.findall(r"core/(\w+/\w+)\.py: (\w+(?:, \w+)*)", text)
    core = Path(library.__file__).parents[2] / "core"
    assert len(named) > 20
    for file, names in named:
        source = (core / f"{file}.py").read_text()
        for name in names.split(", "):
            assert re.search(rf"^(async def|def|class)? ?{name}\b", source, re.MULTILINE), name


def test_core_names_lua_functions_that_the_library_has() -> None:
    core = Path(library.__file__).parents[2] / "core"
    text = re.sub(r"\s+", " ", " ".join(path.read_text() for path in sorted(core.rglob("*.py"))))
    named = re.findall(r"lua/(\w+)\.lua(?: \(([^)]*)\))?", text)
    assert len(named) > 10
    for file, names in named:
        source = (LUA / f"{file}.lua").read_text()
        for name in re.findall(r"J\.[\w.]+", names):
            assert f"function {name}(" in source, f"{name} in lua/{file}.lua"


def test_every_option_that_is_written_is_read_back() -> None:
    written = {name for _, name, _, _ in jobs._OPTIONS}
    assert written <= set(StoredOptions.__struct_encode_fields__)


async def test_the_library_comes_back_after_it_was_flushed(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "a")])
    assert server.tell("FUNCTION", "FLUSH").startswith(b"+OK")
    await store.put([spec(queue, "b")])
    assert server.tell("FUNCTION", "FLUSH").startswith(b"+OK")
    assert [lease.id for lease in await take(store, queue, 5)] == ["a", "b"]


async def test_function_names_contain_the_version(store: ValkeyStore, server: Server) -> None:
    listed = server.tell("FUNCTION", "LIST")
    assert b"jobq_v2" in listed
    assert b"jobq_v2_settle" in listed


if __name__ == "__main__":
    LISTED.write_text(f"{library.VERSION} {library.DIGEST}\n")
