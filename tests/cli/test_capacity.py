"""`jq-ctl capacity` answers from measured costs, and refuses figures that cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jobq.cli.ctl import main


def ask(*args: str) -> Result:
    return CliRunner().invoke(main, ["capacity", *args])


def answer(*args: str) -> Any:
    return json.loads(ask(*args, "-o", "json").stdout)


def needs(found: Any) -> dict[str, int]:
    return {need["what"]: need["count"] for need in found["needs"]}


def test_the_table_says_what_is_needed_and_why() -> None:
    result = ask("--jobs-per-second", "5000", "--payload", "2kb", "--run-time", "0.2s")
    assert result.exit_code == 0, result.output
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["NEED", "COUNT", "BECAUSE", "OF"]
    assert any(line.startswith("Valkey primaries") for line in lines)
    assert any("worker processes" in line and "jobs run at once" in line for line in lines)
    assert "costs measured on" in result.stderr


def test_the_example_of_the_docs_prints_what_the_docs_say() -> None:
    text = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    example = re.search(r"\$ jq-ctl capacity ([^`]*)\n```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert example
    result = ask(*example[1].replace("\\\n", " ").split())
    assert [line.rstrip() for line in result.stdout.splitlines()] == example[2].splitlines()


def test_the_document_has_the_load_the_answer_and_its_parts() -> None:
    found = answer("--jobs-per-second", "200", "--payload", "2kb", "--store", "postgres")
    assert found["fits"] is True
    assert found["load"]["payload"] == 2048
    assert needs(found)["PostgreSQL servers"] == 1
    assert found["use"]["total_us"] == pytest.approx(sum(found["use"]["store_us"].values()))


def test_a_load_that_is_too_much_for_the_store_exits_with_1_and_says_what_to_do() -> None:
    result = ask("--jobs-per-second", "100000", "--store", "postgres", "--tenants", "500")
    assert result.exit_code == 1
    assert "too much for one PostgreSQL" in result.stdout
    assert "divide the tenants" in result.stdout


def test_kafka_and_the_lake_are_counted_only_if_asked_for() -> None:
    load = ("--jobs-per-second", "2000", "--queues", "20")
    assert not {"relays", "Kafka partitions", "Spark executors"} & needs(answer(*load)).keys()
    with_all = needs(answer(*load, "--kafka", "--lake", "--jq-server"))
    assert {"relays", "Kafka partitions", "Spark executors", "jq-servers"} <= with_all.keys()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--jobs-per-second", "0"), "0"),
        (("--jobs-per-second", "inf"), "jobs_per_s must be at most 1e+12"),
        (("--jobs-per-second", "nan"), "jobs_per_s must be at most 1e+12"),
        (("--jobs-per-second", "10", "--payload", "big"), "is not a size"),
        (("--jobs-per-second", "10", "--headroom", "100%"), "is not a share"),
        (("--jobs-per-second", "10", "--run-time", "1s", "--cpu-time", "2s"), "cannot use 2 s"),
        (("--jobs-per-second", "10", "--measured", "missing.toml"), "cannot read missing.toml"),
    ],
)
def test_wrong_figures_are_one_line_that_names_them(args: tuple[str, ...], said: str) -> None:
    result = ask(*args)
    assert result.exit_code != 0
    assert said in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.output


def test_the_costs_of_another_machine_change_the_answer(tmp_path: Path) -> None:
    from jobq.operations.capacity import constants

    known = Path(constants.__file__).with_name("measured.toml").read_text()
    slow = tmp_path / "slow.toml"
    slow.write_text(known.replace("[valkey]\nput_call_us = ", "[valkey]\nput_call_us = 9000"))
    load = ("--jobs-per-second", "500")
    assert (
        needs(answer(*load, "--measured", str(slow)))["Valkey primaries"]
        > needs(answer(*load))["Valkey primaries"]
    )
    slow.write_text(known.replace("[valkey]\nput_call_us = ", "[valkey]\nput_call_us = -"))
    assert "valkey.put_call_us is a cost" in ask(*load, "--measured", str(slow)).stderr
    slow.write_text(re.sub(r"^sparse_us = .*", "sparse_us = 0", known, count=1, flags=re.MULTILINE))
    assert "sparse_us and" in ask(*load, "--measured", str(slow)).stderr
    slow.write_text(known.replace("kafka_partition_bytes = 5000000.0", "kafka_partition_bytes = 0"))
    result = ask(*load, "--kafka", "--measured", str(slow))
    assert "kafka_partition_bytes is what a partition carries" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    slow.write_text("[valkey]\n")
    result = ask(*load, "--measured", str(slow))
    assert "is not a file of measured costs" in result.stderr
    assert len(result.stderr.splitlines()) == 1
