"""Tasks of every executor, for jobs whose arguments or results are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobq import Queue

queue = Queue("unfit", "memory://unfit", max_payload=1000)
calls: list[object] = []
"""What the tasks of this process were called with, if their arguments were wrong."""


def _check(n: object) -> int:
    if not isinstance(n, int):
        calls.append(n)
    return 1


@queue.task
async def inline(n: int, when: datetime | None = None) -> int:
    return _check(n)


@queue.task
def thread(n: int, when: datetime | None = None) -> int:
    return _check(n)


@queue.task(executor="process")
def process(n: int, when: datetime | None = None) -> int:
    return _check(n)


@dataclass
class Item:
    n: int
    when: datetime | None = None


@queue.batch_task(size=10)
async def batch(items: list[Item]) -> list[int]:
    return [_check(item.n) for item in items]


command = queue.command("command", ["echo", "{n}"])


# ── results ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Row:
    price: Any


def _rows(price: Any) -> dict[str, list[Row]]:
    return {"rows": [Row(1), Row(2), Row(3), Row(price)]}


_RESULTS: dict[str, Callable[[], Any]] = {
    "opaque": lambda: _rows(object()),
    "nan": lambda: _rows(math.nan),
    "large": lambda: "x" * 2000,
}


@queue.task
async def inline_opaque(n: int) -> Any:
    return _RESULTS["opaque"]()


@queue.task
async def inline_nan(n: int) -> Any:
    return _RESULTS["nan"]()


@queue.task
async def inline_large(n: int) -> Any:
    return _RESULTS["large"]()


@queue.task
def thread_opaque(n: int) -> Any:
    return _RESULTS["opaque"]()


@queue.task
def thread_nan(n: int) -> Any:
    return _RESULTS["nan"]()


@queue.task
def thread_large(n: int) -> Any:
    return _RESULTS["large"]()


@queue.task(executor="process")
def process_opaque(n: int) -> Any:
    return _RESULTS["opaque"]()


@queue.task(executor="process")
def process_nan(n: int) -> Any:
    return _RESULTS["nan"]()


@queue.task(executor="process")
def process_large(n: int) -> Any:
    return _RESULTS["large"]()


@queue.batch_task(size=10)
async def batch_opaque(items: list[int]) -> list[Any]:
    return [_RESULTS["opaque"]() for _ in items]


@queue.batch_task(size=10)
async def batch_nan(items: list[int]) -> list[Any]:
    return [_RESULTS["nan"]() for _ in items]


@queue.batch_task(size=10)
async def batch_large(items: list[int]) -> list[Any]:
    return [_RESULTS["large"]() for _ in items]
