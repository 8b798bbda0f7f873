"""jobq without its extras: the core works, and what needs an extra says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from scripts.release import IMPORT_ALL, NEEDS_AN_EXTRA, unexpected

EXTRAS = sorted({name for names in NEEDS_AN_EXTRA.values() for name in names})

HIDE = f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(name, name=name.partition(".")[0])

sys.meta_path.insert(0, Hidden())
"""
"""Makes the packages of the extras look as if they were not installed."""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE + textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_every_module_that_needs_no_extra_can_be_imported() -> None:
    done = python(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["imported"] > 150
    assert unexpected(found["failed"]) == []


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("jobq.cli.ctl", ["--version"]),
        ("jobq.cli.worker", ["--version"]),
        ("jobq.cli.server", ["--version"]),
        ("jobq.relay.cli", ["--version"]),
        ("jobq.pipeline.cli", ["--version"]),
        ("jobq.pipeline.cli", ["--help"]),
    ],
)
def test_every_command_starts_without_extras(module: str, arguments: list[str]) -> None:
    done = python(f"from {module} import main; main(prog_name='it')", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from jobq.stores import open_store; open_store('valkey://localhost')", "jobq[valkey]"),
        ("from jobq.stores import open_store; open_store('grpc://localhost')", "jobq[grpc]"),
        ("from jobq.pipeline.cli import main; main(['run', '--lake', 'x'])", "jobq[spark]"),
        ("from jobq.pipeline.cli import main; main(['run', '--no-such-option'])", "jobq[spark]"),
        ("import jobq.otel", "jobq[otel]"),
        ("import jobq.prometheus", "jobq[prometheus]"),
        ("import jobq.sentry", "jobq[sentry]"),
        ("from jobq.relay.targets import open_target; open_target('kafka://a/b')", "jobq[kafka]"),
    ],
)
def test_what_needs_an_extra_names_it(code: str, extra: str) -> None:
    done = python(code)
    assert done.returncode != 0
    assert f"pip install '{extra}'" in done.stderr
