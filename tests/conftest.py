"""Options of the whole test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--store NAME` (repeatable) chooses the stores of the contract suite; so does JQ_TEST_STORES=name,name."""
    parser.addoption("--store", action="append", default=[], metavar="NAME", help="run the contract suite on this store only")
