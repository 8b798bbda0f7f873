"""The stores that the rules are played on: one per implementation, or those `--store` names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from jobq_conformance.conftest import fresh_places  # noqa: F401 (a fixture)
from jobq_conformance.places import Fresh
from tests.rules.kit import Table

STORES = ["memory", "postgres", "valkey"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`--store` chooses the stores."""
    if "table" in metafunc.fixturenames:
        named = metafunc.config.getoption("--store") or STORES
        metafunc.parametrize("table", named, indirect=True)


@pytest.fixture
def table(
    request: pytest.FixtureRequest,
    fresh_places: Callable[[str], Fresh],  # noqa: F811
) -> Iterator[Table]:
    """Where scripts are played. Every example gets an empty store and a clock of its own."""
    fresh = fresh_places(request.param)
    with asyncio.Runner() as runner:
        yield Table(runner, fresh)
