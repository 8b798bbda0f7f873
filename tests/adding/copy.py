"""A copy of the repository in which the steps of CONTRIBUTING are done."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.adding.guide import Step
from tests.bugs.bug import Edit
from tests.bugs.tree import Tree

SECONDS = 600
"""For one command, or for the tests of one family."""


class Copy:
    """The copy, and the log of what was run in it."""

    def __init__(self, tree: Tree, log: Path) -> None:
        self.tree, self._log = tree, log

    def do(self, steps: Iterable[Step]) -> None:
        """Make the changes and run the commands. Raises if one cannot be done."""
        for step in steps:
            if isinstance(step, Edit):
                self.tree.edit(step)
            else:
                assert step[0] == "python", f"a command of CONTRIBUTING is not python: {step}"
                self.python(*step[1:])

    def python(self, *arguments: str) -> None:
        """Run Python with the code of the copy. Raises with its output if it fails."""
        code = self.tree.python(arguments, self._log, SECONDS)
        assert code == 0, f"python {' '.join(arguments)} in the copy: {code}\n{self._tail()}"

    def tests(self, *arguments: str) -> None:
        """Run tests of the copy. Raises with their output if one fails, or if there are none."""
        self.python("-m", "pytest", "-n", "0", "-x", "-q", *arguments)

    def fails(self, *arguments: str) -> bool:
        """Whether a test of the copy fails. Raises if the tests cannot be run."""
        code = self.tree.python(
            ("-m", "pytest", "-n", "0", "-x", "-q", *arguments), self._log, SECONDS
        )
        assert code in (0, 1), f"pytest {' '.join(arguments)} in the copy: {code}\n{self._tail()}"
        return code == 1

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])
