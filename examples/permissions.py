"""Permissions: what a job may read, write and reach, enforced by the kernel."""

import asyncio
import importlib
import socket
import tempfile
from pathlib import Path

from jobq import ConfigError, JobFailed, Permissions, Queue, Worker

TEMPLATES = str(Path(__file__).parent / "demo")

uploads = Queue("uploads", "memory://")
only_templates = Permissions(read=[TEMPLATES], memory="512M", cpu=30)


@uploads.task(executor="process", retry=0, permissions=only_templates)
def render(template: str) -> int:
    page = Path(tempfile.mkdtemp(), "page.html")  # in a folder of this process's own
    page.write_text(Path(template).read_text())
    return page.stat().st_size


@uploads.task(executor="process", retry=0, permissions=only_templates)
def phone_home(host: str) -> None:
    socket.create_connection((host, 80), timeout=1)


async def main() -> None:
    try:
        async with uploads, Worker(uploads, pool=1):
            print(f"rendered {await render.call(f'{TEMPLATES}/screen.py')} bytes")
            for violation in (render.call("/etc/passwd"), phone_home.call("203.0.113.1")):
                try:
                    await violation
                except JobFailed as failed:
                    print(f"{failed.failure.type}: {failed.failure.message}")
    except ConfigError as error:  # a machine without Landlock
        print(error)


if __name__ == "__main__":
    # Child processes import tasks by the name of their module, which `__main__` is not.
    asyncio.run(importlib.import_module(Path(__file__).stem).main())
