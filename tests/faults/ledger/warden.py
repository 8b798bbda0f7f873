"""Ends the processes of a run when the run itself is gone: `python warden.py MARK`.

The run holds the other end of this program's standard input. When the run ends, however it ends,
the kernel closes that end. The warden then kills every process whose environment has the mark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def start(mark: str) -> subprocess.Popen[bytes]:
    """Start a warden for processes whose environment has LEDGER_MARK=mark."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__)), mark],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal must not end it first
    )


def marked(mark: str) -> list[int]:
    """The processes that have the mark, apart from this one."""
    found = []
    wanted = f"LEDGER_MARK={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def main(mark: str) -> None:
    """Wait for the end of the run, then kill what it has left."""
    sys.stdin.buffer.read()
    for _ in range(3):  # a process may have started another one meanwhile
        for pid in marked(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


if __name__ == "__main__":
    main(sys.argv[1])
