"""Options of the whole test run, and the stores that the conformance suite runs on."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from tests import tiers
from tests.places import embedded, postgres, server, valkey  # noqa: F401 (importing them registers their stores)
from tests.progress import Progress


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--store NAME`, repeatable, chooses the stores to test. JQ_TEST_STORES=name,name does too.

    `--postgres VERSION` chooses the PostgreSQL, as JQ_POSTGRES does.
    """
    parser.addoption(
        "--store",
        action="append",
        default=[],
        metavar="NAME",
        help="run the contract suite on this store only",
    )

    parser.addoption(
        "--postgres",
        metavar="VERSION",
        help="the major version of PostgreSQL that tests use, for example 18 (JQ_POSTGRES)",
    )
    tiers.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Programs that tests start use the same version. A run on several workers shows one line.

    The first tier tries a seventh of the random examples.
    """
    if version := config.getoption("--postgres"):
        os.environ["JQ_POSTGRES"] = version
    if config.getoption("--tier") == "test":
        os.environ.setdefault("JQ_EXAMPLES_SHARE", "0.15")
    if config.getoption("numprocesses", None) and not config.getoption("verbose"):
        config.pluginmanager.register(Progress())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`--tier` chooses among what was collected."""
    tiers.choose(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended: it knows what its tier left out."""
    if left := getattr(node, "workeroutput", {}).get("left"):  # one that crashed says nothing
        node.config.stash[tiers.LEFT] = left


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what was not run, and what to install or run for it: a green run must not hide it."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    left: dict[str, int] = config.stash.get(tiers.LEFT, {})
    reasons.update(left)
    if reasons:
        terminalreporter.section("not run", sep="=", yellow=True, bold=True)
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:>6,} tests: {reason}", yellow=True)


def _reason(report: pytest.TestReport) -> str:
    found = report.longrepr
    return (found[2] if isinstance(found, tuple) else str(found)).removeprefix("Skipped: ")
