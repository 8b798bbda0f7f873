"""The files target: complete files of JSON lines, and no lost event."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
from click.testing import CliRunner

from jobq.core.records import wire
from jobq.core.records.events import EventRecord
from jobq.core.records.marks import reached
from jobq.errors import ConfigError
from jobq.relay import Relay, open_target
from jobq.relay.cli import main
from jobq.relay.files import FilesTarget
from jobq.stores.base import Store
from tests.relay.conftest import QUEUE, put, work


def events_in(folder: Path) -> list[EventRecord]:
    """All events that a reader of the folder sees."""
    return [
        wire.decode(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if '"kind":"mark"' not in line
    ]


def marks_in(folder: Path) -> list[int]:
    """The numbers of all marks that a reader of the folder sees."""
    return [
        json.loads(line)["number"]
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if '"kind":"mark"' in line
    ]


async def test_a_file_appears_when_it_is_finished(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "events"
    target = open_target(f"files://{folder}?max_seconds=3600")
    relay = Relay(store, target)
    await target.open()
    await put(store, "a", "b")
    await work(store)
    await relay.drain()
    assert events_in(folder) == []
    await target.aclose()
    logged = (await store.read_events(QUEUE, after="0")).events
    assert [event.id for event in events_in(folder)] == [event.id for event in logged]


async def test_a_large_file_is_finished_and_a_new_one_started(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "events"
    target = open_target(f"files://{folder}?max_mb=0.0001&max_seconds=3600")
    relay = Relay(store, target, page=1)
    await target.open()
    for id in ("a", "b", "c"):
        await put(store, id)
    await relay.drain()
    assert len(list(folder.glob("*.jsonl"))) == 4  # the last one has the mark
    await target.aclose()


async def test_the_next_relay_finishes_a_killed_relays_file_without_its_incomplete_line(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    await put(store, "a", "b")
    one, two = (await store.read_events(QUEUE, after="0")).events
    (folder / ".growing-20250101T000000-gone-1-000001").write_bytes(
        wire.encode(one) + b"\n" + wire.encode(two)[:40]
    )
    (folder / ".growing-20250101T000000-gone-2-000001").write_bytes(b"")
    target = open_target(f"files://{folder}")
    await target.open()
    assert [event.id for event in events_in(folder)] == [one.id]
    assert not list(folder.glob(".growing-*"))
    await target.aclose()


async def test_the_unfinished_file_of_a_live_relay_is_not_touched(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "events"
    living, other = (
        open_target(f"files://{folder}?max_seconds=3600"),
        open_target(f"files://{folder}"),
    )
    await put(store, "a")
    await living.open()
    await living.send((await store.read_events(QUEUE, after="0")).events)
    await other.open()
    assert events_in(folder) == []
    assert len(list(folder.glob(".growing-*"))) == 1
    await living.aclose()
    assert len(events_in(folder)) == 1


async def test_a_relay_that_starts_before_a_new_file_is_locked_takes_no_events(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file exists, and is not locked yet."""
    url, lock = f"files://{tmp_path}/events?max_seconds=3600", fcntl.flock
    target, starting = FilesTarget(url), [FilesTarget(url)]
    await put(store, "a")
    await target.open()

    def another_starts_before(file: BinaryIO, how: int) -> None:
        if starting and not how & fcntl.LOCK_NB:
            starting.pop()._open()
        lock(file, how)

    monkeypatch.setattr("jobq.relay.files.fcntl.flock", another_starts_before)
    await target.send((await store.read_events(QUEUE, after="0")).events)
    await target.aclose()
    assert not starting
    assert [event.job for event in events_in(tmp_path / "events")] == ["a"]


async def test_two_relays_may_finish_the_same_abandoned_file(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    await put(store, "a")
    (event,) = (await store.read_events(QUEUE, after="0")).events
    (folder / ".growing-20250101T000000-gone-1-000001").write_bytes(wire.encode(event) + b"\n")

    class Slower(FilesTarget):
        def _finish_abandoned(self, path: Path) -> None:
            FilesTarget(f"files://{folder}")._open()
            super()._finish_abandoned(path)

    await Slower(f"files://{folder}").open()
    assert [event.job for event in events_in(folder)] == ["a"]


async def test_a_file_that_cannot_be_published_is_published_later(
    store: Store, tmp_path: Path
) -> None:
    folder, away = tmp_path / "events", tmp_path / "away"
    target = open_target(f"files://{folder}?max_seconds=3600")
    relay = Relay(store, target)
    await target.open()
    await put(store, "a")
    await relay.drain()
    target.max_seconds = 0  # type: ignore[attr-defined]
    (growing,) = folder.glob(".growing-*")
    (
        folder / f"events-{growing.name.removeprefix('.growing-')}.jsonl"
    ).mkdir()  # the name of the finished file is taken
    assert await relay.tick() == 0
    assert "could not publish" in (relay.status.problem or "")
    assert "jobq_relay_failing 1" in relay.status.prometheus()
    next(folder.glob("events-*")).rename(away)
    await relay.tick()
    assert relay.status.problem is None
    assert [event.job for event in events_in(folder)] == ["a"]
    await target.aclose()


async def test_nothing_is_acknowledged_into_a_file_that_was_removed(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "events"
    target = open_target(f"files://{folder}?max_seconds=3600")
    relay = Relay(store, target)
    await target.open()
    await put(store, "a")
    await relay.drain()
    shutil.rmtree(folder)
    await put(store, "b")
    assert await relay.tick() == 0
    assert relay.status.queues[0].problem
    folder.mkdir()
    assert await relay.tick() == 1
    await target.aclose()
    assert [event.job for event in events_in(folder)] == ["b"]


async def test_with_once_the_command_ships_all_events_and_exits(
    store: Store, tmp_path: Path
) -> None:
    await put(store, "a")
    await work(store)
    shipped = subprocess.run(
        [
            sys.executable,
            "-m",
            "jobq.relay",
            "--url",
            f"sqlite:///{tmp_path}/jobs.db",
            "--to",
            f"files://{tmp_path}/out",
            "--once",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "3 events shipped" in shipped.stdout
    assert [event.kind for event in events_in(tmp_path / "out")] == [
        "accepted",
        "started",
        "completed",
    ]


async def test_the_command_stops_on_a_signal_and_publishes_its_file(
    store: Store, tmp_path: Path
) -> None:
    await put(store, "a")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jobq.relay",
            "--url",
            f"sqlite:///{tmp_path}/jobs.db",
            "--to",
            f"files://{tmp_path}/out?max_seconds=0",
        ],
    )
    try:
        while not events_in(tmp_path / "out"):
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)


def test_an_invalid_target_is_refused_with_a_valid_example() -> None:
    with pytest.raises(ConfigError, match="kafka://host:9092/topic or files:///folder"):
        open_target("ftp://somewhere")
    with pytest.raises(ConfigError, match="files:///absolute/folder"):
        open_target("files://relative")
    with pytest.raises(ConfigError, match="has no topic"):
        open_target("kafka://host:9092")
    with pytest.raises(ConfigError, match=r"no option 'max_bm' \(did you mean 'max_mb'\?\)"):
        open_target("files:///folder?max_bm=3")
    with pytest.raises(ConfigError, match="max_mb='abc' must be a number"):
        open_target("files:///folder?max_mb=abc")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "ftp://somewhere"], "unknown target"),
        (["--to", "files://{file}"], "is not a folder"),
        (["--to", "files://{file}/below"], "is not a folder"),
        (
            ["--to", "files://{folder}", "--metrics-port", "99999999"],
            "99999999 is not in the range",
        ),
        (["--to", "files://{folder}", "--metrics-port", "{port}"], "--metrics-port {port}: "),
    ],
)
def test_a_wrong_option_is_a_one_line_error(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"file": file, "folder": tmp_path / "folder", "port": taken.getsockname()[1]}
        given = [argument.format(**names) for argument in arguments]
        done = CliRunner().invoke(main, [*given, "--url", "memory://", "--once"])
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert says.format(**names) in done.output
    assert [
        line for line in done.output.splitlines() if line.startswith("Error: ")
    ] == done.output.splitlines()[-1:]


async def test_a_mark_waits_for_files_that_other_relays_still_hide(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "events"
    first = open_target(f"files://{folder}?max_seconds=3600")
    await first.open()
    await put(store, "a")
    assert await Relay(store, first, who="same").tick() == 1
    await put(store, "b")
    second = open_target(f"files://{folder}?max_seconds=0")
    await Relay(store, second, who="same").drain()
    assert [event.job for event in events_in(folder)] == ["b"]
    assert marks_in(folder) == [], "a is still hidden"
    await first.aclose()
    await second.tick()
    assert marks_in(folder) == [2]
    assert sorted(event.job for event in events_in(folder)) == ["a", "b"]


async def test_a_mark_publishes_what_a_dead_relay_left_hidden(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "events"
    target = open_target(f"files://{folder}?max_seconds=0")
    await target.open()
    await put(store, "a", "b")
    one, two = (await store.read_events(QUEUE, after="0")).events
    dead = folder / ".growing-20250101T000000-gone-1-000001"
    dead.write_bytes(wire.encode(one) + b"\n")
    await target.send([two])
    await target.mark(list(reached([one, two]).values()))
    assert (marks_in(folder), dead.exists()) == ([2], False)
    assert {event.job for event in events_in(folder)} == {"a", "b"}
