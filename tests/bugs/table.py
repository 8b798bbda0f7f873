"""All bugs."""

from __future__ import annotations

from tests.bugs.stores import STORES

BUGS = (*STORES,)
