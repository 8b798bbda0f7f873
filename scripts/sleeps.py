"""No sleep in tests that waits for something. `make check` runs it.

A sleep is too short on a loaded machine and too long on every other. A test waits for an event, a
fake clock, or a helper of `tests/waiting.py` that names what it waits for. `sleep(0)`, which lets
other tasks run once, is allowed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = ("tests", "src/jobq_conformance")

ALLOWED = {
    "tests/waiting.py": "the helpers that every other test uses",
    "src/jobq_conformance/kit.py": "the same for the suite, which is part of the package",
    "tests/cli/apps": "programs under test: they import nothing of the tests",
    "tests/faults/app.py": "a program under test",
    "tests/pipeline/app.py": "a program under test",
    "tests/simulation": "its time is virtual: a sleep there takes no time",
}


def sleeps(source: str) -> Iterator[int]:
    """The lines that call `asyncio.sleep` or `time.sleep` with anything but 0."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep")
            and [ast.unparse(argument) for argument in node.args] != ["0"]
        ):
            yield node.lineno


def check(root: Path) -> list[str]:
    """Every sleep that is not allowed, as `path:line: message`."""
    found = []
    for path in sorted(path for folder in TESTS for path in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not any(name == allowed or name.startswith(f"{allowed}/") for allowed in ALLOWED):
            found += [
                f"{name}:{line}: a sleep waits too long or not long enough: wait for an event, "
                "the fake clock, or use tests/waiting.py"
                for line in sleeps(path.read_text())
            ]
    return found


def main() -> int:
    """Print what was found. Returns the exit code."""
    found = check(Path())
    for line in found:
        print(line)
    print(f"sleeps: {len(found)} to replace" if found else "sleeps: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
