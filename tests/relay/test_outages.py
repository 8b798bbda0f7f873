"""An outage of the target or of the store is one line of the log, and its end is another."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobq.cli.server import main
from jobq.console.logs import TRACE
from jobq.errors import StoreUnavailable
from jobq.relay import Relay, open_target
from jobq.stores.base import Store
from scripts.ports import free_port
from tests.relay.conftest import put
from tests.waiting import until


def _about(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]
    return [line for line in found if words in line]


async def test_a_kafka_that_is_down_is_one_line(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    place = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    target = open_target(
        f"kafka://{place}/topic?reconnect.backoff.ms=10&reconnect.backoff.max.ms=50"
    )
    relay = Relay(store, target, lease=1.5)
    await put(store, "1")
    with caplog.at_level(TRACE, "jobq"):
        running = asyncio.ensure_future(relay.run())
        await until(
            lambda: sum("FAIL" in each.getMessage() for each in caplog.records) > 100,
            "a hundred tries to connect",
        )
        relay.stop()
        await running
    lines = [line for line in _about(caplog, "") if "is shipped by this relay" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("shipping events to kafka://")
    assert "Connection refused" in lines[0]


async def test_a_target_that_comes_and_goes_is_a_line_each_time(
    store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    folder = tmp_path / "lake"
    relay = Relay(store, open_target(f"files://{folder}"))
    await relay.target.open()
    with caplog.at_level(logging.INFO, "jobq"):
        for n in range(3):
            await put(store, f"down-{n}")
            away = folder.rename(tmp_path / "away")
            folder.write_text("a file is in the way")
            for _ in range(10):
                await relay.tick()
            folder.unlink()
            away.rename(folder)
            for _ in range(3):
                await relay.tick()
    await relay.target.aclose()
    lines = _about(caplog, "files://")
    assert len(lines) <= 6, lines
    assert len(lines) >= 2, lines


async def test_a_store_that_is_down_is_one_line_and_its_end_another(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tries, queues = 0, store.queues

    async def fails(*args: object) -> list[object]:
        nonlocal tries
        tries += 1
        raise StoreUnavailable("valkey://somewhere is gone")

    relay = Relay(store, open_target(f"files://{tmp_path}/lake"), poll=0.001)
    with caplog.at_level(logging.INFO, "jobq"):
        monkeypatch.setattr(store, "queues", fails)
        running = asyncio.ensure_future(relay.run())
        await until(lambda: tries > 50, "fifty tries")
        monkeypatch.setattr(store, "queues", queues)
        await until(lambda: len(_about(caplog, "the relay: works again")) == 1, "the end of it")
        relay.stop()
        await running
    assert len(_about(caplog, "somewhere is gone")) == 1


def test_a_dry_run_says_once_that_kafka_is_down(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        f"store: {{url: 'memory://dry'}}\nkafka: {{brokers: ['127.0.0.1:{free_port()}']}}\n"
    )
    result = CliRunner().invoke(main, ["--config", str(config), "--dry-run"])
    about = [line for line in result.output.splitlines() if "127.0.0.1:" in line and "afka" in line]
    assert result.exit_code == 1
    assert len(about) == 1, result.output
    assert "FAIL" not in result.output
    assert about[0].startswith("PROBLEM kafka: ")
