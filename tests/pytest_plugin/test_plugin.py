"""The pytest plugin, in a project of its own: its fixtures, and what it costs when unused."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SHOP = """
from jobq import Queue, current_job

billing = Queue("billing", "valkey://nowhere:1")
not_a_queue = 7

@billing.task
async def charge(invoice: int) -> int:
    await receipt.options(delay=60).enqueue(invoice)
    return invoice

@billing.task
def receipt(invoice: int) -> None:
    current_job().sync.progress(invoice)
"""

INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
pythonpath = .
"""


def project(folder: Path, tests: str, settings: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin in a project with these tests and settings."""
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(tests)
    (folder / "pytest.ini").write_text(f"{INI}{settings}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "jobq_pytest", "-p", "pytest_asyncio.plugin"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_sandbox_serves_async_and_plain_tests(tmp_path: Path) -> None:
    done = project(
        tmp_path,
        """
import pytest
from shop import billing, charge, receipt
from jobq import State, current_job

@pytest.fixture
async def database():
    yield "open"

async def test_the_event_loop_of_another_fixture_outlives_the_sandbox(database, jobq_sandbox):
    await charge.enqueue(6)

async def test_async(jobq_sandbox, jobq_clock):
    job = await charge.enqueue(7)
    assert await jobq_sandbox.drain(inline=True) == 1
    assert await job.result() == 7
    await jobq_sandbox.assert_enqueued(receipt, 7)
    jobq_clock.advance(60)
    assert await jobq_sandbox.drain() == 1

async def test_every_test_begins_empty(jobq_sandbox):
    assert sum((await billing.counts()).values()) == 0

def test_plain(jobq_sandbox):
    charge.sync.enqueue(8)
    assert jobq_sandbox.sync.drain(inline=True, delayed=True) == 2
    assert billing.sync.counts()[State.COMPLETED] == 2

def test_the_queue_is_back_at_home():
    assert billing.url == "valkey://nowhere:1"

def test_a_handler_alone(jobq_job):
    receipt(9)
    assert jobq_job.progress == [9]
""",
        "jobq_queues = shop:billing\n",
    )
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_a_conftest_may_name_the_queues(tmp_path: Path) -> None:
    done = project(
        tmp_path,
        """
import pytest, shop

@pytest.fixture
def jobq_queues():
    return [shop.billing]

async def test_it(jobq_sandbox):
    await shop.charge.enqueue(7)
    assert await jobq_sandbox.drain() == 1
""",
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("", "jobq_sandbox has no queues: set jobq_queues"),
        ("jobq_queues = shop:not_a_queue\n", "shop:not_a_queue is a int, not a Queue"),
    ],
)
def test_a_wrong_setting_is_told_in_words(tmp_path: Path, settings: str, says: str) -> None:
    done = project(tmp_path, "def test_it(jobq_sandbox): pass\n", settings)
    assert done.returncode == 1
    assert says in done.stdout


def test_a_project_that_does_not_use_the_plugin_does_not_import_jobq(tmp_path: Path) -> None:
    done = project(
        tmp_path,
        """
import sys

def test_it():
    assert "jobq_pytest" in sys.modules
    assert not [name for name in sys.modules if name == "jobq" or name.startswith("jobq.")]
    assert "msgspec" not in sys.modules
""",
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["entry-points"]["pytest11"] == {"jobq": "jobq_pytest"}
    assert "src/jobq_pytest" in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
