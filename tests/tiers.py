"""Which tests `make test` runs, and which it leaves to `make test-rest`.

`--tier test` runs the first tier, `--tier rest` what it leaves out, `--tier all` both. Without the
option, pytest runs whatever it is asked to. No tier runs tests marked `faults`: `make faults` does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

_SPARK = (
    *("audit", "busy", "datasource", "derive", "erase", "falsified", "formats", "incremental"),
    *("ingest", "insight", "lives", "lock", "metrics", "other_engines", "report", "report_page"),
    "walk",
)
_POSTGRES = ("access", "bad_days", "plans", "races", "schema", "servers", "settings", "wakes")
_FORCED = (
    "tests/engine/test_forced.py::test_whatever_the_engine_calls_may_raise_and_the_slot_comes_back"
)
_FLOWS = "src/jobq_conformance/test_flow_"

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "the simulation": ("tests/simulation/",),
    "browsers": ("tests/web/browser/",),
    "two releases at once": ("tests/adjacent/",),
    "Kafka": (
        "tests/relay/test_kafka.py",
        "tests/relay/test_outages.py",
        "tests/pipeline/test_end_to_end.py",
    ),
    "Spark": (
        *(f"tests/pipeline/test_{name}.py" for name in _SPARK),
        "tests/pipeline/test_cli.py",
    ),
    "pairs of features on partitioned queues": (
        "tests/pairs/test_pairs.py::test_two_features_keep_their_promises_together[partitioned",
    ),
    "large flows": (
        "src/jobq_conformance/test_large_flows.py",
        f"{_FLOWS}callers.py::test_of_several_edges_to_one_job",
        f"{_FLOWS}callers.py::test_two_flows_share_a_member_with_many_edges",
        f"{_FLOWS}whole.py::test_a_large_flow",
        f"{_FLOWS}whole.py::test_a_parent_of_many",
        f"{_FLOWS}whole.py::test_jobs_of_one_large_put",
        f"{_FLOWS}whole.py::test_one_that_many_wait_for",
    ),
    "the sandbox": ("tests/executors/sandbox/", "tests/executors/test_permissions.py"),
    "an error at every call, with processes": (
        *(f"{_FORCED}[{kind}" for kind in ("process", "command")),
    ),
    "PostgreSQL's plans, settings, rights and bad days": tuple(
        f"tests/stores/postgres/test_{name}.py" for name in _POSTGRES
    ),
    "hooks in processes": ("tests/executors/test_hooks.py",),
    "the contract suite in other ways": (
        "tests/stores/relational/test_small_steps.py",
        "tests/outside_store/",
    ),
    "packages and programs from outside": (
        "tests/scripts/test_slim_core.py",
        "tests/typing/",
    ),
    "copies of stores that are killed": ("tests/cli/test_store.py::test_a_copy",),
    "processes of workers that start and stop": (
        "tests/cli/test_supervisor.py",
        "tests/cli/test_worker_process.py",
        "tests/cli/test_worker_probes.py",
    ),
    "Django": ("tests/with_django/",),
    "workers in other languages": ("tests/server/test_workers_languages.py",),
    "the benches": ("tests/bench/",),
    "the steps of CONTRIBUTING in copies of the repository": ("tests/adding/",),
    "the examples": (
        "tests/examples/",
        "tests/web/test_applications.py",
        "tests/cli/test_demo.py",
    ),
}
"""What `make test` leaves out: what it needs or does, and how the ids of its tests begin."""

SUBSET = {"memory", "redis", "valkey-cluster", "valkey-sentinel"}
"""Places on which `make test` runs only the tests of the contract that are marked `topology`.

They share their code with SQLite and with one Valkey, on which it runs all of them.
"""

EMBEDDED = ("tests/api", "tests/engine", "tests/executors")
"""Folders whose tests run on memory alone in `make test`."""


DIRECTIONS = {
    ("sqlite", "valkey"),
    ("valkey", "sqlite"),
    ("sqlite", "postgres"),
    ("sqlite", "grpc"),
}
"""The directions in which `make test` copies a store."""


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
    for why, beginnings in LEFT_OUT.items():
        if item.nodeid.startswith(beginnings):
            return "make test-rest", why
    params = _params(item)
    place = params.get("store_name")
    if place in SUBSET and not item.get_closest_marker("topology"):
        return "make test-rest", f"the contract suite on {place}"
    if item.nodeid.startswith("tests/rules") and "postgres" in params.values():
        return "make test-rest", "the rules of core on PostgreSQL, which calls them itself"
    if params.get("direction", ("sqlite", "grpc")) not in DIRECTIONS:
        return "make test-rest", "other directions of a store copy"
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
