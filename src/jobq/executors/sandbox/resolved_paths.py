"""Where a path leads, and what lies below it: through links, `..` and mounts."""

from __future__ import annotations

import os
import re
from collections import deque
from errno import EINVAL
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_MAX_LINKS = 40
"""Links that one path may lead through, as in the kernel."""
_OF_A_PROCESS = re.compile(r"/proc/(self|thread-self|[0-9]+)(/|$)")
_ESCAPED = re.compile(r"\\([0-7]{3})")


class ResolvedPath(NamedTuple):
    """What a path leads to."""

    path: str
    real: str | None
    """The path without links. None if there is no such file, or this user cannot reach it."""
    used: tuple[str, ...]
    """Every file, folder and link that the lookup went through, each without links before it."""

    @property
    def of_a_process(self) -> bool:
        """Whether it leads through the folder of a process, e.g. /proc/self."""
        return any(_OF_A_PROCESS.match(at) for at in self.used)


def lookup(path: str) -> ResolvedPath:
    """Follow an absolute path as the kernel does, and note the way."""
    used: list[str] = []
    here, links = "/", 0
    left = deque(path.split("/"))
    while left:
        name = left.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        at = os.path.join(here, name)
        used.append(at)
        try:
            target = os.readlink(at)
        except OSError as error:
            if error.errno != EINVAL:  # there is no such file
                return ResolvedPath(path, None, tuple(used))
            here = at  # no link
            continue
        links += 1
        if links > _MAX_LINKS:
            return ResolvedPath(path, None, tuple(used))
        left.extendleft(reversed(target.split("/")))
        if target.startswith("/"):
            here = "/"
    return ResolvedPath(path, here, tuple(used))


class _Mount(NamedTuple):
    point: str
    device: str
    root: str  # the folder of the device that is mounted


class Mounts:
    """The mounts of this process. One folder may be mounted at several places."""

    def __init__(self) -> None:
        self._mounts: list[_Mount] = []
        try:
            lines = Path("/proc/self/mountinfo").read_text().splitlines()
        except OSError:  # then paths are compared by their names alone
            lines = []
        for line in lines:
            _, _, device, root, point, *_ = line.split(" ")
            self._mounts.append(_Mount(_unescaped(point), device, _unescaped(root)))

    def is_below(self, inner: str, outer: str) -> bool:
        """Whether a process that may use everything below `outer` may use `inner`.

        Both are paths without links. A folder is not below itself. `inner` may be a folder that is
        mounted at another place too, or `outer` may have a mount below it.
        """
        if is_under(inner, outer):
            return True
        device, path = self._on_device(inner)
        return any(device == other and is_under(path, root) for other, root in self._parts(outer))

    @lru_cache(maxsize=1024)  # noqa: B019 - a worker has one, and few paths
    def _parts(self, folder: str) -> tuple[tuple[str, str], ...]:
        """The folders of devices that can be reached below a folder."""
        below = ((m.device, m.root) for m in self._mounts if is_under(m.point, folder))
        return (self._on_device(folder), *below)

    @lru_cache(maxsize=1024)  # noqa: B019
    def _on_device(self, path: str) -> tuple[str, str]:
        """The device of a path, and the path on this device."""
        found = _Mount("/", "", "/")
        for mount in self._mounts:  # the last one of several at the same place is on top
            if len(mount.point) >= len(found.point) and (
                path == mount.point or is_under(path, mount.point)
            ):
                found = mount
        rest = path[len(found.point) :].lstrip("/")
        return found.device, os.path.join(found.root, rest) if rest else found.root


def is_under(inner: str, outer: str) -> bool:
    """Whether the one path begins with the other, and goes on."""
    return inner != outer and inner.startswith(outer.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
