"""Runs parts of the contract suite on a place with PostgreSQL."""

from __future__ import annotations

from tests.stores import suite
from tests.stores.postgres import servers


def contract_suite_passes(place: str, *names: str) -> None:
    """Run these files of the suite on a place, and check that they pass."""
    servers.postgres_or_skip()
    suite.contract_suite_passes(place, *names)
