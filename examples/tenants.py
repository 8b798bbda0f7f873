"""A jq-server with tokens: two tenants on one server, and none of them sees the other's jobs."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jwt

from jobq import AccessDenied, Queue, Worker

SECRET = secrets.token_urlsafe(48)


def token(tenant: str, *scopes: str) -> str:
    """What an identity provider does: sign who may do what, for ten minutes."""
    claims = {
        "sub": f"{tenant}-app",
        "tenant": tenant,
        "scope": " ".join(scopes),
        "aud": "jobq",
        "exp": int(time.time()) + 600,
    }
    return jwt.encode(claims, SECRET, algorithm="HS256")


@contextmanager
def server() -> Iterator[str]:
    """A jq-server that checks tokens, in a process of its own."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "jobq.cli.server", "--url", "memory://"),
            *("--grpc-port", "0", "--metrics-port", "0", "--health-port", "0"),
        ],
        env={
            **os.environ,
            "JQ_AUTH_SECRET": SECRET,
            "JQ_AUTH_AUDIENCE": "jobq",
            "JQ_GRPC_HOST": "127.0.0.1",
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr:
        found = (re.search(r"listening on (\S+)", line) for line in process.stderr)
        address = next(match for match in found if match)[1]
        try:
            yield f"grpc://{address}"
        finally:
            process.terminate()


async def main() -> None:
    with server() as url:
        # acme's application: it submits jobs, runs them and reads results.
        os.environ["JQ_TOKEN"] = token("acme", "produce", "work", "read")
        async with Queue("mail", url) as mail:

            @mail.task
            async def send(to: str) -> str:
                return f"sent to {to}"

            async with Worker(mail):
                job = await send.enqueue("ann@acme.example")
                print(mail.tenant, "gets:", await job.result(timeout=30))
            try:
                await mail.pause()
            except AccessDenied as denied:
                print("acme may not pause:", denied)

        # The other tenant's operator uses the same names, and finds nothing.
        os.environ["JQ_TOKEN"] = token("other", "admin")
        async with Queue("mail", url) as mail:
            print(mail.tenant, "finds:", [found.id async for found in mail.find()])


if __name__ == "__main__":
    asyncio.run(main())
