"""Benchmarks on PostgreSQL use one durable server, and a new database per measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest
from rich.console import Console

from bench import __main__ as program
from bench import backlog_postgres, pinned, roster
from bench.places import Postgres, ask_postgres, place
from bench.postgres_paths import measures, without
from tests.stores.postgres.servers import postgres_or_skip


def test_a_commit_is_on_the_disk_when_it_returns() -> None:
    postgres_or_skip()
    with place("postgres", "") as where:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert ask_postgres(where.url, f"show {setting}") == "on"


def test_every_measurement_has_an_empty_database_of_the_same_server() -> None:
    postgres_or_skip()
    with place("postgres", "") as first:
        assert isinstance(first, Postgres)
        ask_postgres(first.url, "create table jobs as select * from generate_series(1, 10000) as n")
        assert first.bytes_used() > 10_000 * 4
        assert isinstance(first.bytes_used(), int)
        first.filled()
        assert ask_postgres(first.url, "select reltuples from pg_class where relname = 'jobs'") > 0
    with place("postgres", "") as second:
        assert isinstance(second, Postgres)
        assert second.server is first.server
        assert second.url != first.url
        assert not second.bytes_used()
        names = "select string_agg(datname, ' ') from pg_database where datname like 'bench%'"
        assert ask_postgres(second.url, names) == second.url.rpartition("/")[2]


def test_a_suite_omits_an_optional_library_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = replace(roster.CONTENDERS["river"], binary=tmp_path / "river")
    monkeypatch.setitem(roster.CONTENDERS, "river", missing)
    monkeypatch.setitem(roster.SUITES, "postgres", ("jobq-postgres", "river"))
    console = Console(record=True, width=200)
    found = program._contenders(console, "postgres", None, None, ())
    assert [contender.name for contender in found] == ["jobq-postgres"]
    assert (
        "river is not installed: run make bench-postgres, which needs Go" in console.export_text()
    )
    with pytest.raises(click.ClickException, match="river is not installed"):
        program._contenders(console, "postgres", "river", None, ())


def test_the_pinned_bench_compares_the_second_half_with_the_time_before() -> None:
    load = pinned.Load(800)
    load.claims = [pinned.Sample(at, ms) for at, ms in ((0, 1.0), (9, 3.0), (12, 99.0), (18, 6.0))]
    found = {row.what: row for row in pinned.rows(load, [], 0, 10, 20)}
    claim = found["claim, p99"]
    assert (claim.clean, claim.pinned, claim.slower, claim.bound) == (3.0, 6.0, 2.0, 5.0)


def test_the_pinned_bench_fails_if_a_bound_is_missed_or_nothing_was_measured() -> None:
    even, slow = pinned.Row("claim, p99", 1.0, 4.9, 5.0), pinned.Row("claim, p99", 1.0, 5.1, 5.0)
    assert pinned.report("", [even]) == 0
    assert pinned.report("", [slow]) == 1
    load = pinned.Load(800)
    assert pinned.report("", pinned.rows(load, [], 0, 10, 20)) == 1


def test_the_backlog_bench_checks_the_claims_and_the_space() -> None:
    def code(many: float, first: int, second: int) -> int:
        full = backlog_postgres.Sizes(1000, 1000)
        cycles = [
            backlog_postgres.Cycle(full, full, backlog_postgres.Sizes(left, 1000))
            for left in (first, second)
        ]
        return backlog_postgres.report(10, ([1.0, 1.0, 9.0], [many] * 3), cycles)

    assert code(1.3, 500, 600) == 0
    assert code(1.4, 500, 600) == 1
    assert code(1.3, 1001, 1001) == 1
    assert code(1.3, 500, 601) == 1


@pytest.mark.parametrize("name", without.WITHOUT)
async def test_the_bench_of_mechanisms_can_do_without_each_of_them(name: str) -> None:
    postgres_or_skip()
    size = measures.Sizes(rounds=1, jobs=20, dead=0, sleeps=0)
    _, patches, (first, *_) = without.WITHOUT[name]
    _, take = measures.MEASURES[first]
    with place("postgres", "") as where, without.patched(patches):
        assert isinstance(where, Postgres)
        assert await take(where, size) > 0
