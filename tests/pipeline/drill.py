"""The parts of an end-to-end test: a store, Kafka, and processes to kill and restart."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobq import Queue, State
from jobq.client.log_reader import LogReader
from tests.kafka import Kafka, spark_jars
from tests.pipeline import quick
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
QUEUES = ("drill", "second")


class Drill:
    """All parts, in one folder. `close` ends all processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"sqlite:///{folder}/jobs.db"
        self.lake = str(folder / "lake")
        self.kafka = Kafka(folder / "kafka").start()
        self.topic = f"kafka://{self.kafka.address}/events"
        self._env = {
            **os.environ,
            "JQ_URL": self.url,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "JQ_SPARK_JARS": spark_jars("spark-kafka"),
        }
        self._running: list[subprocess.Popen[bytes]] = []
        self._again = 0

    def start(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a Python module as a process. Its output goes to NAME.txt."""
        with (self.folder / f"{name}.txt").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *args],
                env=self._env,
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )
        self._running.append(process)
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start("worker", "tests.pipeline.app")

    def relay(self, *more: str) -> subprocess.Popen[bytes]:
        return self.start("relay", "jobq.relay", "--url", self.url, "--to", self.topic, *more)

    def send_again(self) -> None:
        """Ship everything a second time, under another reader's name: every event is a copy."""
        self._again += 1
        assert self.relay("--once", "--name", f"again-{self._again}").wait(300) == 0, (
            self.last_words()
        )

    def pipeline(self, *more: str) -> subprocess.Popen[bytes]:
        small = quick.options(spark_sql_shuffle_partitions="2", spark_driver_memory="1g")
        run = (
            "run",
            "--source",
            self.topic,
            "--lake",
            self.lake,
            "--every",
            "1",
            "--derive-every",
            "5",
            "--max-events",
            "400",
            "--master",
            "local[2]",
        )
        return self.start("pipeline", "jobq.pipeline", *run, *small, *more)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process with SIGKILL, like a crash."""
        process.kill()
        process.wait(30)

    def wait_until(
        self, reached: Any, *, watch: Sequence[subprocess.Popen[bytes]] = (), seconds: float = 180
    ) -> None:
        """Wait until `reached()` is true.

        If the time is over or a watched process ends, the test fails with the end of the output."""

        def there() -> bool:
            assert all(process.poll() is None for process in watch), self.last_words()
            return bool(reached())

        try:
            wait_until(there, "the pipeline to get there", seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.last_words()}") from error

    def last_words(self) -> str:
        return "\n".join(
            f"── {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.folder.glob("*.txt"))
        )

    def enqueue(self, first: int, last: int) -> None:
        async def go() -> None:
            for name, task in zip(QUEUES, ("shaky", "steady"), strict=True):
                async with Queue(name, self.url) as queue:
                    await queue.task_by_name(task).enqueue_many([(n,) for n in range(first, last)])

        asyncio.run(go())

    def counts(self) -> dict[State, int]:
        async def go() -> dict[State, int]:
            total: dict[State, int] = dict.fromkeys(State, 0)
            for name in QUEUES:
                async with Queue(name, self.url) as queue:
                    for state, n in (await queue.counts()).items():
                        total[state] += n
            return total

        return asyncio.run(go())

    def ended(self) -> int:
        counts = self.counts()
        return counts[State.COMPLETED] + counts[State.FAILED]

    def shipped(self) -> bool:
        """Whether the relay has acknowledged everything in the log."""

        async def go() -> bool:
            async with LogReader(self.url) as log:
                return all(
                    [
                        await log.position(queue, "relay") == await log.end(queue)
                        for queue in await log.queues()
                    ]
                )

        return asyncio.run(go())

    def taken_in(self) -> int:
        """The number of events in the lake, from its state file."""
        import json

        state = Path(self.lake, "_jobq", "state.json")
        try:
            return int(json.loads(state.read_text())["totals"]["events"])
        except FileNotFoundError:  # not written yet, or being replaced
            return 0

    def staging(self) -> set[str]:
        """The sessions of pipelines in the middle of a batch: they have written files of it."""
        folders = Path(self.lake, "_staging").glob("*/batch/table=events")
        return {folder.parts[-3] for folder in folders}

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                self.kill(process)
        self.kafka.stop()
