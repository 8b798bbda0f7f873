"""Record the formats: python -m tests.golden"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from tests.golden import formats
from tests.golden.test_golden import FILE
from tests.stores.valkey import servers


def main() -> None:
    """Write golden.json."""
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.running(servers.valkey_binary(), Path(folder)) as server,
    ):
        found = {
            "sent": formats.sent(),
            "sqlite": asyncio.run(formats.sqlite(Path(folder))),
            "valkey": asyncio.run(formats.valkey(server.url, server.port)),
        }
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
