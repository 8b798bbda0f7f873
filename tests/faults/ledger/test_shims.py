"""The shims do what they say: unsynced writes are lost, synced ones are not, clocks jump."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.ledger.shimming import Clock, Missing, Power

WRITER = """
import os, sys
folder = sys.argv[1]

def new(name):
    return os.open(f"{folder}/{name}", os.O_RDWR | os.O_CREAT)

synced = new("synced"); os.write(synced, b"kept"); os.fsync(synced)
never = new("never"); os.write(never, b"lost")
half = new("half"); os.write(half, b"kept kept"); os.fdatasync(half)
os.pwrite(half, b"lost", 0); os.pwrite(half, b"lost too", 5)
cut = new("cut"); os.write(cut, b"kept"); os.fsync(cut); os.ftruncate(cut, 1)
again = new("again"); os.write(again, b"kept"); os.fsync(again); os.close(again)
again = os.open(f"{folder}/again", os.O_WRONLY | os.O_TRUNC); os.write(again, b"lost")
end = os.open(f"{folder}/end", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(end, b"1"); os.fsync(end); os.writev(end, [b"2", b"3"])
if os.fork() == 0:
    os.write(end, b"4")
    os.pwrite(synced, b"LOST", 0)
    os._exit(0)
os.wait()
moved = new("moved.new"); os.write(moved, b"lost")
os.rename(f"{folder}/moved.new", f"{folder}/moved")
"""
KEPT = {
    "synced": b"kept",
    "never": b"",
    "half": b"kept kept",
    "cut": b"kept",
    "again": b"kept",
    "end": b"1",
    "moved": b"",
}


@pytest.fixture
def power(tmp_path: Path) -> Power:
    (tmp_path / "files").mkdir()
    try:
        return Power(tmp_path / "files", tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))


def write(power: Power, folder: Path, program: str = WRITER) -> None:
    subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env={**os.environ, **power.variables},
        check=True,
        timeout=60,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_power_cut_loses_all_that_was_not_synced(power: Power, tmp_path: Path) -> None:
    write(power, tmp_path / "files")
    assert contents(tmp_path / "files")["half"] == b"lost lost too"
    power.cut("all", random.Random(1))
    assert contents(tmp_path / "files") == KEPT
    power.cut("all", random.Random(1))
    assert contents(tmp_path / "files") == KEPT, "the second cut had nothing to lose"


def test_a_power_cut_may_leave_the_beginning_of_what_was_appended(
    power: Power, tmp_path: Path
) -> None:
    program = """
import os, sys
for n in range(40):
    end = os.open(f"{sys.argv[1]}/{n}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(end, b"1"); os.fsync(end)
    for text in b"2", b"3", b"4":
        os.write(end, text)
"""
    write(power, tmp_path / "files", program)
    power.cut("end", random.Random(1))
    assert set(contents(tmp_path / "files").values()) == {b"1", b"12", b"123"}


def test_a_power_cut_may_leave_any_blocks(power: Power, tmp_path: Path) -> None:
    program = """
import os, sys
file = os.open(f"{sys.argv[1]}/blocks", os.O_RDWR | os.O_CREAT)
os.write(file, b"a" * 65536); os.fsync(file)
os.pwrite(file, b"b" * 65536, 0)
"""
    write(power, tmp_path / "files", program)
    power.cut("some", random.Random(1))
    found = (tmp_path / "files" / "blocks").read_bytes()
    blocks = [found[at : at + 4096] for at in range(0, 65536, 4096)]
    assert set(blocks) == {b"a" * 4096, b"b" * 4096}


def test_a_clock_jumps_forward_and_back(tmp_path: Path) -> None:
    try:
        clock = Clock("test", tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    program = "import time; print(time.time(), time.monotonic())"
    for jump, expected in ((3600, 3600), (-7200, -3600)):
        clock.jump(jump)
        said = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **clock.variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        wall, monotonic = map(float, said.split())
        assert abs(wall - time.time() - expected) < 60
        assert abs(monotonic - time.monotonic()) < 60
