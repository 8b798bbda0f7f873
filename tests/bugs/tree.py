"""A copy of the repository that can be changed: it gets a bug, or something new (tests/adding)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bugs.bug import Bug, Edit

ROOT = Path(__file__).parents[2]

_TEST_S = 60
"""Seconds for one test. A bug that makes its test hang is found, too; without it, all are short."""
_TESTS_S = 300
"""Seconds for all tests of one bug."""


_TIERS = {"test": ("--tier", "test"), "test-all": ("--tier", "all"), "nightly": ()}
_OPTIONS = ("-n", "0", "-x", "-q", "--timeout", str(_TEST_S))


class DoesNotApply(Exception):
    """The present text of an edit is not in its file exactly once."""


class Tree:
    """The copy. It is called jobq and is below a folder with a space, as CI's clone is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._edits = 0

    @contextmanager
    def with_bug(self, bug: Bug) -> Iterator[None]:
        """Everything inside has the bug."""
        texts = {edit.file: (self.root / edit.file).read_text() for edit in bug.edits}
        buggy = dict(texts)
        for edit in bug.edits:
            buggy[edit.file] = _edited(buggy[edit.file], edit)
        try:
            for file, text in buggy.items():
                self._write(file, text)
            yield
        finally:
            for file, text in texts.items():
                self._write(file, text)

    def edit(self, edit: Edit) -> None:
        """Make a change that stays."""
        self._write(edit.file, _edited((self.root / edit.file).read_text(), edit))

    def _write(self, file: str, text: str) -> None:
        path = self.root / file
        path.write_text(text)
        # Python compiles a file again if its size or the second of its time has changed.
        self._edits += 1
        os.utime(path, (self._edits, self._edits))

    def run(self, bug: Bug, log: Path) -> int | None:
        """Run the tests of a bug that its tier has, with their output in a file.

        Returns the exit code of pytest; None: it took too long.
        """
        options = (*_OPTIONS, *_TIERS[bug.tier])
        return self.python(("-m", "pytest", *bug.found_by, *options), log, _TESTS_S)

    def python(self, arguments: Sequence[str], log: Path, seconds: float) -> int | None:
        """Run Python in the copy, with its code. Returns the exit code; None: it took too long."""
        command = [sys.executable, *arguments]
        path = os.pathsep.join((str(self.root / "src"), str(self.root)))
        with log.open("w") as output:
            child = subprocess.Popen(
                command,
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": path},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return child.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill what a test that hung, or was interrupted, has left behind."""
    try:
        os.killpg(child.pid, 9)
    except ProcessLookupError:
        pass
    child.wait()


def _edited(text: str, edit: Edit) -> str:
    found = text.count(edit.present)
    if found != 1:
        raise DoesNotApply(f"{edit.file} has {found} times {edit.present!r}")
    return text.replace(edit.present, edit.buggy)


@contextmanager
def copied() -> Iterator[Tree]:
    """A copy of all files that git knows or would add. Nothing is changed in the repository."""
    folder = Path(tempfile.mkdtemp(prefix="jobq bugs "))
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        root = folder / "jobq"
        for name in listed.rstrip("\0").split("\0"):
            if (ROOT / name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        yield Tree(root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
