"""The annotation of a result is found behind wrappers, methods and awaitables."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jobq.core.rules.calls import returns_of


@dataclass
class Invoice:
    number: int


class Office:
    def invoice(self) -> Invoice:
        return Invoice(1)

    def __call__(self) -> Invoice:
        return Invoice(1)


async def coroutine() -> Invoice:
    return Invoice(1)


def awaitable() -> Awaitable[Invoice]:
    return coroutine()


@functools.wraps(coroutine)
def wrapper() -> Any:
    return coroutine()


def plain() -> dict[str, int]:
    return {}


def unknown() -> Missing:  # type: ignore[name-defined]  # noqa: F821 - on purpose
    return None


@pytest.mark.parametrize(
    "fn", [Office().invoice, coroutine, awaitable, wrapper, functools.partial(coroutine)]
)
def test_an_annotation_that_needs_conversion_is_found(fn: Callable[..., Any]) -> None:
    assert returns_of(fn) is Invoice
    assert returns_of(fn) is Invoice  # from memory


@pytest.mark.parametrize("fn", [plain, unknown, len, Office(), lambda: 1])
def test_anything_else_needs_no_conversion(fn: Callable[..., Any]) -> None:
    assert returns_of(fn) is Any
    assert returns_of(fn) is Any
