"""The handler of RQ in `forking.py`. RQ imports it by name in the process that it forks."""

from __future__ import annotations

from bench.ticks import Ticks


def noop(folder: str, n: int) -> int:
    Ticks(folder).tick()
    return n
