"""A lake has one writer: a second one is refused, and a dead one is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from jobq.pipeline import lake as lock
from jobq.pipeline.jobs.run import PipelineRun
from jobq.pipeline.lake import EXPIRES_S, Claim, Lake, LakeInUse, Lock
from jobq.pipeline.slo import DEFAULTS
from jobq.pipeline.sources import open_source
from tests.pipeline.conftest import History


def claim(lake: Lake) -> Path:
    return Path(lake.root, "_jobq", "writer.json")


def altered(lake: Lake, **changes: object) -> None:
    """Change fields of the lake's lock file."""
    found = msgspec.json.decode(claim(lake).read_bytes(), type=Claim)
    lake.files.write(
        str(claim(lake)), msgspec.json.encode(msgspec.structs.replace(found, **changes)).decode()
    )


def test_a_second_writer_is_refused_until_the_first_has_ended(lake: Lake) -> None:
    refused = pytest.raises(
        LakeInUse, match=rf"jq-pipeline run.*process {os.getpid()} .*is writing to this lake"
    )
    with lake.writing("run"), refused:
        lake.writing("compact").acquire()
    assert not claim(lake).exists()
    with lake.writing("compact"):
        pass


def test_the_lock_of_a_killed_process_is_taken_over(lake: Lake) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with lake.writing("run"):
        altered(lake, owner="another", pid=gone.pid)
        with lake.writing("run"):
            assert claim(lake).exists()


def test_a_claim_from_another_machine_expires_without_renewal(lake: Lake) -> None:
    with lake.writing("run"):
        seen = msgspec.json.decode(claim(lake).read_bytes(), type=Claim).at_ms
        altered(lake, owner="another", host="elsewhere", pid=1)
        with pytest.raises(LakeInUse, match="on elsewhere"):
            lake.writing("run").acquire()
        altered(lake, at_ms=seen - int(EXPIRES_S * 1000) - 1)
        with lake.writing("run"):
            pass


def test_a_writer_that_was_considered_dead_stops_and_keeps_its_successors_claim(
    lake: Lake,
) -> None:
    with lake.writing("run") as first:
        altered(lake, owner="another")
        with pytest.raises(LakeInUse):
            first.check()
    assert claim(lake).exists()


def test_a_run_locks_the_lake_and_removes_unfinished_files_of_others(
    lake: Lake, history: History, tmp_path: Path
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(
        b"\n".join(msgspec.json.encode(line) for line in history.life("a").lines)
    )
    left = Path(lake.root, "_staging", "earlier", "batch")
    left.mkdir(parents=True)
    (left / "half.parquet").touch()
    run = PipelineRun(lake, open_source(str(folder)), DEFAULTS)
    run.start(lake.spark, once=True)
    with pytest.raises(LakeInUse):
        PipelineRun(Lake(lake.spark, lake.root), open_source(str(folder)), DEFAULTS).start(
            lake.spark, once=True
        )
    run.wait()
    assert run.brought.events == 3
    assert not left.parent.exists()
    assert not claim(lake).exists()


class SlowFiles:
    """A file system on which a file is empty while it is being written."""

    def __init__(self) -> None:
        self.text = ""
        self.empty = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read(self, path: str) -> str:
        return self.text

    def write(self, path: str, text: str) -> None:
        self.text = ""
        self.empty.set()
        self.goes_on.wait(10)
        self.text = text

    def delete(self, path: str) -> None:
        self.text = ""


def test_a_writer_keeps_the_lake_while_its_claim_is_being_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock, "RENEW_S", 0.01)
    files = SlowFiles()
    with Lock(cast(Any, files), "writer.json", "run") as held, ThreadPoolExecutor(1) as other:
        files.goes_on.clear()
        files.empty.clear()
        assert files.empty.wait(10), "the claim is renewed"
        checked = other.submit(held.check)
        assert not checked.done() or checked.exception() is None
        files.goes_on.set()
        checked.result(timeout=10)
