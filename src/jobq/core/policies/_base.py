"""How a policy is made: a frozen dataclass that checks its arguments in its constructor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

policy = dataclass(frozen=True, slots=True, init=False)
"""The decorator of every policy. Each one writes its own `__init__`, which checks and converts."""


def set_fields(instance: object, **fields: Any) -> None:
    """Set fields of a frozen policy. Only its constructor may call this."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
