"""Which stores a release of jobq works on, decided by the layout that the store carries."""

from __future__ import annotations

import pytest

from jobq import __version__
from jobq.core.rules.layout import Layout, refuse_newer, refuse_running
from jobq.errors import ConfigError


def test_a_store_of_the_same_layout_is_used() -> None:
    refuse_newer("jobs.db", Layout(layout=2, oldest=2), 2)


def test_a_store_of_an_older_layout_is_used() -> None:
    refuse_newer("jobs.db", Layout(layout=2, oldest=2), 3)


def test_a_newer_layout_that_only_adds_is_used() -> None:
    refuse_newer("jobs.db", Layout(layout=3, oldest=2), 2)


def test_a_newer_layout_that_changes_data_is_refused_with_both_versions() -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_newer("jobs.db", Layout(layout=4, oldest=3, release="0.4.1"), 2)
    words = str(refused.value)
    assert "jobs.db has layout 4, from jobq 0.4.1" in words
    assert f"this is jobq {__version__}, which can work with layouts up to 2" in words
    assert "upgrade jobq here to 0.4.1 or newer" in words


def test_a_store_is_migrated_when_no_worker_of_the_older_release_runs() -> None:
    refuse_running("jobs.db", 1, 2, [])


def test_a_store_with_running_workers_is_not_migrated() -> None:
    with pytest.raises(ConfigError, match=r"2 of its workers are running \(a, b\): stop all"):
        refuse_running("jobs.db", 1, 2, ["b", "a"])
