"""A real Kafka broker for tests: one process (KRaft, both roles).

Maven downloads its jars once to .cache/jars. Without Maven or Java, tests that need Kafka are
skipped with a message that says what to install.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from scripts.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent
JARS = ROOT / ".cache" / "jars"

_LOGGING = """
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
"""


def jars(*names: str) -> list[Path]:
    """The jars of scripts/jars/NAME.xml, downloaded if necessary. Skips the test if that fails."""
    done = subprocess.run(
        [ROOT / "scripts" / "jars" / "fetch", *names], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        pytest.skip(
            f"MISSING JARS ({', '.join(names)}): {(done.stderr or done.stdout).strip()[-300:]}"
        )
    return [jar for name in names for jar in sorted((JARS / name).glob("*.jar"))]


def spark_jars(*names: str) -> str:
    """The jars as a value for spark.jars."""
    return ",".join(str(jar) for jar in jars(*names))


class Kafka:
    """A broker that can be stopped and started again on the same port with the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._controller = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._classpath = str(jars("kafka")[0].parent / "*")
        self._process: subprocess.Popen[bytes] | None = None
        self._format()

    def _format(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        (self.folder / "server.properties").write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{self._controller}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self._controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            "inter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={self.folder / 'data'}\nnum.partitions=4\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        cluster = self._java("kafka.tools.StorageTool", "random-uuid").strip().splitlines()[-1]
        self._java(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster,
            "-c",
            str(self.folder / "server.properties"),
        )

    def _command(self, *args: str) -> list[str]:
        java = shutil.which("java") or "java"
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [java, "-Xmx512m", logging, "-cp", self._classpath, *args]

    def _java(self, *args: str) -> str:
        return subprocess.run(
            self._command(*args), check=True, capture_output=True, text=True, timeout=120
        ).stdout

    def start(self) -> Kafka:
        """Start the broker and wait until it listens."""
        output = (self.folder / "output.txt").open("ab")
        self._process = subprocess.Popen(
            self._command("kafka.Kafka", str(self.folder / "server.properties")),
            stdout=output,
            stderr=output,
        )
        output.close()
        wait_until(self._listens_or_has_ended, "Kafka to start", seconds=90)
        if self._process.poll() is None:
            return self
        self.stop()
        raise AssertionError(
            f"Kafka did not start: {(self.folder / 'output.txt').read_text()[-2000:]}"
        )

    def _listens_or_has_ended(self) -> bool:
        with socket.socket() as probe:
            listens = probe.connect_ex(("127.0.0.1", self.port)) == 0
        return listens or self._process is None or self._process.poll() is not None

    def stop(self, *, hard: bool = False) -> None:
        """Stop the broker; with `hard`, kill it like a crash."""
        if self._process is not None:
            (self._process.kill if hard else self._process.terminate)()
            self._process.wait(60)
            self._process = None
