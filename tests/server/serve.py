"""A jq-server in a process of its own: `python serve.py URL PORT BEAT_MS DEAF_MS`."""

from __future__ import annotations

import asyncio
import sys

from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.exchange import ExchangeService
from jobq.server.host import Host
from jobq.stores import open_store


async def main(url: str, port: int, beat_ms: int, deaf_ms: int) -> None:
    async with open_store(url) as store:
        context = ServerContext(store, ServerSettings(grpc_port=port))

        def exchange(context: ServerContext) -> ExchangeService:
            return ExchangeService(context, beat_ms=beat_ms, deaf_ms=deaf_ms)

        async with Host(context, [exchange]):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
