"""Configuration and data on the pages are what jobq reads and writes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from jobq.core.records import marks, wire
from jobq.pipeline.slo import load_targets
from jobq.server.config import load
from jobq.server.plan import plan
from jobq.stores import GROUP
from jobq_pytest import INI
from tests.docs.blocks import ROOT, Block, blocks
from tests.docs.command_checks import parse

CONFIGURATION = {"yaml", "toml", "ini", "json", "promql", "sql"}
LANGUAGES = CONFIGURATION | {"python", "console", "sh", "text", "diff"}
"""A change (diff) is made by tests/adding."""
PROGRAM = re.compile(r"^(?:\$ )?(?:jq-\w+|pip|make|python|docker|kubectl|curl) ", re.MULTILINE)


def shown(page: str, language: str) -> list[Block]:
    """The blocks of a page in one language. There is at least one."""
    found = [block for block in blocks() if block[:2] == (f"docs/guide/{page}", language)]
    assert found
    return found


def test_every_block_names_a_known_language() -> None:
    strange = [(b.page, b.language, b.text[:40]) for b in blocks() if b.language not in LANGUAGES]
    assert strange == []


def test_configuration_is_part_of_a_file_or_names_the_test_that_reads_it() -> None:
    for block in blocks():
        if block.language in CONFIGURATION and not block.title:
            assert block.held == "checked by", f"{block.page}: {block.text[:60]}"
            test = (ROOT / block.reason).read_text()
            assert Path(block.page).name in test, f"{block.reason} does not read {block.page}"


def test_a_block_of_text_shows_no_command() -> None:
    hidden = [(b.page, b.text) for b in blocks() if b.language == "text" and PROGRAM.search(b.text)]
    assert hidden == [], "use ```sh or ```console, which are run"


@pytest.mark.parametrize(
    "block", [*shown("server.md", "yaml"), *shown("security.md", "yaml")], ids=lambda b: b.page
)
def test_the_server_accepts_the_configuration_of_a_page(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(block.text)
    loaded = load(file, {})
    assert loaded.given
    assert loaded.warnings == ()
    assert plan(loaded, {"JQ_DB_PASSWORD": "secret"}) is not None


def test_the_pipeline_accepts_the_targets_of_its_page(tmp_path: Path) -> None:
    (block,) = shown("lake-questions.md", "yaml")
    file = tmp_path / "slo.yaml"
    file.write_text(block.text)
    assert [target.name for target in load_targets(str(file))] == [
        "starts at once",
        "quick",
        "works",
    ]


def test_the_event_on_the_page_of_the_relay_can_be_read() -> None:
    event, mark = shown("relay.md", "json")
    assert wire.decode(event.text.replace("\n", "")).name == "charge"
    assert msgspec.json.decode(mark.text, type=marks._Line).kind == marks.MARK


def test_the_unit_on_the_page_of_the_commands_starts_a_worker_and_lets_it_drain() -> None:
    (block,) = shown("jq-worker.md", "ini")
    command = re.search(r"^ExecStart=\S+/(jq-worker) (.*)$", block.text, re.MULTILINE)
    assert command is not None
    options = parse(command[1], command[2].split()).params
    stop = re.search(r"^TimeoutStopSec=(\d+)$", block.text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > options["drain"] + 30, "a process is killed 30 s after its drain"


def test_the_query_that_scales_workers_is_that_of_the_manifest() -> None:
    (block,) = shown("deployment.md", "promql")
    manifest = (ROOT / "deploy/kubernetes/autoscaling/scaledobject.yaml").read_text()
    assert " ".join(block.text.split()) in " ".join(manifest.split())


def test_the_metrics_in_the_alerts_of_the_page_exist() -> None:
    (block,) = shown("observability.md", "promql")
    metrics = set(re.findall(r"jobq_\w+", block.text))
    source = (ROOT / "src/jobq/prometheus.py").read_text()
    assert metrics
    assert [name for name in metrics if f'"{name}"' not in source] == []


def test_the_setting_of_pytest_is_the_one_that_the_plugin_reads() -> None:
    (block,) = shown("testing.md", "toml")
    assert list(tomllib.loads(block.text)["tool"]["pytest"]["ini_options"]) == [INI]


def test_the_entry_point_of_a_store_is_in_the_group_that_jobq_reads() -> None:
    (block,) = shown("writing-a-store.md", "toml")
    assert list(tomllib.loads(block.text)["project"]["entry-points"]) == [GROUP]
