"""Stored and sent formats stay as they were recorded, byte by byte.

`python -m tests.golden` records them again. Data of earlier versions stays where it is, so a
difference needs a migration, or is a mistake.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.golden import formats
from tests.golden.family import OPTIONS, specs
from tests.stores.valkey.servers import Server

FILE = Path(__file__).parent / "golden.json"


def recorded(name: str) -> formats.Formats:
    found: dict[str, formats.Formats] = json.loads(FILE.read_text())
    return found[name]


def test_every_option_is_in_the_family() -> None:
    fields = set(next(specs()).__struct_fields__)
    assert fields - set(OPTIONS) == {"queue", "id", "name", "payload", "reserved"}


def test_what_is_sent_has_the_recorded_bytes() -> None:
    assert formats.sent() == recorded("sent")


async def test_a_sqlite_file_has_the_recorded_bytes(tmp_path: Path) -> None:
    assert await formats.sqlite(tmp_path) == recorded("sqlite")


async def test_a_valkey_has_the_recorded_bytes(valkey: Server) -> None:
    assert await formats.valkey(valkey.url, valkey.port) == recorded("valkey")
