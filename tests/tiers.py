"""Which tests `make test` runs, and which it leaves to `make test-rest`.

`--tier test` runs the first tier, `--tier rest` what it leaves out, `--tier all` both. Without the
option, pytest runs whatever it is asked to. No tier runs tests marked `faults`: `make faults` does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

BEGINNINGS: dict[str, str] = {
    "tests/simulation/": "the simulation",
    "tests/web/browser/": "browsers",
    "tests/adjacent/": "two releases at once",
    "tests/relay/test_kafka.py": "Kafka",
    "tests/relay/test_outages.py": "Kafka",
    "tests/pipeline/test_end_to_end.py": "Kafka",
    **{
        f"tests/pipeline/test_{name}.py": "long histories on Spark"
        for name in (
            "audit",
            "busy",
            "datasource",
            "erase",
            "falsified",
            "formats",
            "incremental",
            "insight",
            "lives",
            "lock",
            "metrics",
            "other_engines",
            "report",
            "report_page",
            "walk",
        )
    },
    "tests/pairs/test_pairs.py::test_two_features_keep_their_promises_together[partitioned": (
        "pairs of features on partitioned queues"
    ),
    "tests/cli/test_demo.py": "what make demo runs",
    "tests/with_django/test_example.py": "the example of Django with real servers",
    "tests/cli/test_supervisor.py": "supervisors that replace their processes",
}
"""How the ids of tests begin that `make test` leaves out, and what they need or do."""

SUBSET = {"memory", "redis", "valkey-cluster", "valkey-sentinel"}
"""Places on which `make test` runs only the tests of the contract that are marked `topology`.

They share their code with SQLite and with one Valkey, on which it runs all of them.
"""

EMBEDDED = ("tests/api", "tests/engine", "tests/executors")
"""Folders whose tests run on memory alone in `make test`."""


LEFT: pytest.StashKey[dict[str, int]] = pytest.StashKey()
"""How many tests were left out, by reason."""


def add_options(parser: pytest.Parser) -> None:
    """`--tier`."""
    parser.addoption(
        "--tier",
        choices=("test", "rest", "all"),
        help="test: what `make test` runs; rest: what it leaves to `make test-rest`; all: both",
    )


def left_to(item: pytest.Item) -> tuple[str, str]:
    """The command that runs a test if `make test` does not, and why. Two empty texts if it does."""
    if item.get_closest_marker("faults"):
        return "make faults", "kills, cuts and failovers that take minutes"
    if mark := item.get_closest_marker("rest"):
        return "make test-rest", str(mark.args[0])
    for beginning, why in BEGINNINGS.items():
        if item.nodeid.startswith(beginning):
            return "make test-rest", why
    params = _params(item)
    place = params.get("store_name")
    if place in SUBSET and not item.get_closest_marker("topology"):
        return "make test-rest", f"the contract suite on {place}"
    if item.nodeid.startswith(EMBEDDED) and "sqlite" in (params.get("kind"), params.get("url")):
        return "make test-rest", "the tests of api, engine and executors on SQLite"
    return "", ""


def _params(item: pytest.Item) -> dict[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tier, and count the others by what they are left to."""
    tier = config.getoption("--tier")
    if tier is None:
        return
    kept: list[pytest.Item] = []
    out: list[pytest.Item] = []
    reasons: Counter[str] = Counter()
    for item in items:
        command, why = left_to(item)
        wanted = {"test": command == "", "rest": command == "make test-rest"}.get(
            tier, command != "make faults"
        )
        (kept if wanted else out).append(item)
        if command and not wanted:
            reasons[f"{command} runs them: {why}"] += 1
    if out:
        items[:] = kept
        config.hook.pytest_deselected(items=out)
    config.stash[LEFT] = dict(reasons)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = dict(reasons)
