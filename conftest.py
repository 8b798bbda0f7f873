"""Options of the whole test run, and the stores that the conformance suite runs on."""

from __future__ import annotations

import pytest

from tests.places import embedded, valkey  # noqa: F401 (importing them registers their stores)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--store NAME` (repeatable) chooses the stores of the contract suite; so does JQ_TEST_STORES=name,name."""
    parser.addoption("--store", action="append", default=[], metavar="NAME", help="run the contract suite on this store only")
