"""The program of a command job: writes to the ledger, as the other handlers do.

It imports nothing of jobq, because it starts once per job.
"""

from __future__ import annotations

import os
import sys
import time


def note(letter: str, n: int) -> None:
    """Append a line to the ledger and sync it."""
    at_ms = time.monotonic_ns() // 1_000_000
    words = [
        f"{n:08}", letter, f"{at_ms:013}", os.environ["JOBQ_ATTEMPT"], "0",
        os.environ["LEDGER_WORKER"], str(os.getpid()),
    ]  # fmt: skip
    path = os.path.join(os.environ["LEDGER_FOLDER"], f"runs-of-{os.environ['LEDGER_WORKER']}.facts")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, ("\t".join(words) + "\n").encode())
    os.fdatasync(file)
    os.close(file)


def main() -> int:
    """Run one job: one in fifty fails at first."""
    n = int(sys.argv[1])
    note("S", n)
    if n % 50 == 0 and os.environ["JOBQ_ATTEMPT"] == "1":
        return 75
    note("T", n)
    sys.stdout.write(str(n))
    return 0


if __name__ == "__main__":
    sys.exit(main())
