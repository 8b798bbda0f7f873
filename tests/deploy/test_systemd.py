"""The systemd units: systemd accepts them, and they give away little."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY

ANALYZE = shutil.which("systemd-analyze")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE = {"jq-server.service": 2.0, "jq-worker@.service": 3.0}
"""The highest exposure that `systemd-analyze security` may find, of 10. Workers run handlers, which
need more."""

pytestmark = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def analyzed(*args: str) -> str:
    """What systemd-analyze prints, on both streams."""
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, *args], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@pytest.fixture(params=UNITS, ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit of deploy/, with programs that exist on this machine and an instance named shop."""
    source: Path = request.param
    text = re.sub(
        r"^(Exec\w+=)/(opt|srv)\S+", r"\1/bin/true", source.read_text(), flags=re.MULTILINE
    )
    path = tmp_path / source.name.replace("@", "-shop")
    path.write_text(text.replace("%i", "shop"))
    return path


def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path) -> None:
    complaints = [line for line in analyzed("verify", str(unit)).splitlines() if unit.name in line]
    assert complaints == []


def test_a_unit_exposes_little(unit: Path) -> None:
    report = analyzed("security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"exposure level for \S+: ([\d.]+)", report)
    assert found is not None, report
    assert float(found[1]) <= EXPOSURE[unit.name.replace("-shop", "@")]
