"""Requests to a port of this machine."""

from __future__ import annotations

import asyncio
import http.client


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the body of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


async def fetch(port: int, path: str) -> tuple[int, str]:
    """The same, while the event loop goes on."""
    return await asyncio.to_thread(get, port, path)
