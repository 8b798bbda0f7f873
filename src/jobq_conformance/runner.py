"""Runs the suite on one store and reports which roles the store has.

Each test uses its own tenants, so other jobs do not disturb it. But the clock of the tests begins
in 2023, and the time of a store never goes back. So run the suite on a store that nobody else uses
(a new file, a new `?prefix=`), or name a function that empties it, which is called with the URL
before each test: `--empty package.module:function`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from jobq.errors import JobqError
from jobq.stores import open_store
from jobq_conformance.places import Fresh, Opening, at, place
from jobq_conformance.roles import ROLES, roles_of

_HERE = Path(__file__).parent
_NAME = "store"
_USAGE = 2
_SETTINGS = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
"""Used instead of any settings in the current folder."""


def main(arguments: Sequence[str]) -> int:
    """Run the suite and return the exit code.

    0 if every test of the store's roles passes, 1 if one fails, 2 if the store cannot be opened.
    """
    options, rest = _options().parse_known_args(arguments)
    try:
        roles = roles_of(open_store(options.url))
        _register(options.url, _hook(options.empty))
    except (JobqError, ValueError, ImportError, AttributeError) as error:
        sys.stderr.write(f"{error}\n")
        return _USAGE
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{folder}/hypothesis")
        settings = Path(folder, "pytest.ini")
        settings.write_text(_SETTINGS)
        given = [
            str(_HERE),
            "-c",
            str(settings),
            "--rootdir",
            str(_HERE),
            "--confcutdir",
            str(_HERE),
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
            "--store",
            _NAME,
            "-q",
            *rest,
        ]
        return int(pytest.main(given, plugins=[_Report(roles)]))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobq.stores.conformance",
        description="Test a store against the contract of jobq.stores.base. "
        "Other arguments are passed on to pytest.",
    )
    parser.add_argument("url", help="URL of the store, as open_store takes it")
    parser.add_argument(
        "--empty",
        metavar="MODULE:FUNCTION",
        help="called with the URL before each test, to empty the store",
    )
    return parser


def _hook(path: str | None) -> Callable[[str], object]:
    if path is None:
        return lambda url: None
    module, colon, function = path.partition(":")
    if not colon:
        raise ValueError(f"--empty {path}: write it as package.module:function")
    found: Callable[[str], object] = getattr(import_module(module), function)
    return found


def _register(url: str, empty: Callable[[str], object]) -> None:
    @place(_NAME)
    def given(tmp: Path) -> Iterator[Fresh]:
        def fresh() -> Opening:
            empty(url)
            return at(url)

        yield fresh


class _Report:
    """Reports the roles of the store, and which tests were skipped because it lacks one."""

    def __init__(self, roles: frozenset[str]) -> None:
        self._has = [role for role in ROLES if role in roles]
        self._lacks = [role for role in ROLES if role not in roles]

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        """The suite's own conftest reads it."""
        parser.addoption("--store", action="append", default=[])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The block at the end."""
        terminalreporter.section("roles of the store")
        terminalreporter.line(f"has    {', '.join(self._has)}")
        terminalreporter.line(f"lacks  {', '.join(self._lacks) or 'none'}")
        reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
        for reason, n in sorted(reasons.items()):
            terminalreporter.line(f"{n:>6,} tests not run: {reason}")
        failed = len(terminalreporter.stats.get("failed", [])) + len(
            terminalreporter.stats.get("error", [])
        )
        terminalreporter.line(
            f"The store {'fails' if failed else 'passes'} the tests of the roles it has."
        )


def _reason(report: pytest.TestReport) -> str:
    found = report.longrepr
    return (found[2] if isinstance(found, tuple) else str(found)).removeprefix("Skipped: ")
