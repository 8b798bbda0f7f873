"""Schemes of store URLs that this process must not open, with the reason."""

from __future__ import annotations

_reasons: dict[str, str] = {}


def refuse(scheme: str, reason: str) -> None:
    """Refuse to open stores of this scheme from now on."""
    _reasons[scheme] = reason


def refusal(scheme: str) -> str | None:
    """Why stores of this scheme cannot be opened here. None if they can."""
    return _reasons.get(scheme)
