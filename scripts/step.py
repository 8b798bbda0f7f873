"""Runs one step of a set-up: shows that it is going on, and keeps its log if it fails.

    python scripts/step.py TITLE LOG COMMAND [ARGUMENT …]

In a terminal, one line shows the time and what the command said last. Elsewhere, a line every ten
seconds says that the step is still running. If the command fails, the end of its log is printed,
and where the whole log is. Needs nothing but the standard library: it runs before any installation.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

TAIL = 20
"""Lines of a failed command that are printed. pip gives its reasons in the last ones."""
QUIET_S = 10.0
"""Seconds between two lines where there is no terminal: CI logs stay short and do not look dead."""
REFRESH_S = 0.5
"""Seconds between two looks at the command in a terminal."""


def run(title: str, log: Path, command: list[str], out: TextIO, *, every_s: float) -> int:
    """Run the command, show its progress on `out`, and return its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    live = out.isatty()
    if not live:
        print(f"{title} …", file=out, flush=True)
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        except OSError as e:
            print(f"{title}: {command[0]} cannot be run: {e.strerror}", file=out)
            return 127
        while True:
            try:
                code = process.wait(every_s)
                break
            except subprocess.TimeoutExpired:
                _show(title, time.monotonic() - began, log, out, live=live)
            except KeyboardInterrupt:
                process.wait()
                raise
    took = time.monotonic() - began
    if live:
        out.write("\r\033[K")
    if code == 0:
        print(f"{title}: done in {took:.0f} s", file=out, flush=True)
        log.unlink()
        return 0
    print("".join(f"  {line}\n" for line in lines_of(log)[-TAIL:]), end="", file=out)
    print(f"{title}: failed with exit code {code} after {took:.0f} s", file=out)
    print(f"The whole log is in {log}", file=out, flush=True)
    return code


def lines_of(log: Path) -> list[str]:
    """The lines of a log that say something."""
    text = log.read_text("utf-8", "replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _show(title: str, seconds: float, log: Path, out: TextIO, *, live: bool) -> None:
    said = (lines_of(log) or [""])[-1].strip()
    line = f"{title}: {seconds:.0f} s" + (f" · {said}" if said else "")
    width = shutil.get_terminal_size().columns - 1 if live else 100
    line = line if len(line) <= width else line[: width - 1] + "…"
    out.write(f"\r\033[K{line}" if live else f"  {line}\n")
    out.flush()


def main(arguments: list[str]) -> int:
    """The command line."""
    if len(arguments) < 3:
        print("usage: step.py TITLE LOG COMMAND [ARGUMENT …]", file=sys.stderr)
        return 2
    title, log, *command = arguments
    every_s = REFRESH_S if sys.stdout.isatty() else QUIET_S
    try:
        return run(title, Path(log), command, sys.stdout, every_s=every_s)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
