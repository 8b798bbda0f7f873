"""Put old bugs back, one after the other, and see a test find each of them.

`python -m tests.bugs` plays all, `python -m tests.bugs WORDS…` those whose name contains one of the
arguments, and `--list` only names them. `--without` runs the same tests without any bug: all must
pass. The repository is not touched: the bugs are put into a copy, which child processes import too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.bugs.bug import Bug, Tier
from tests.bugs.table import BUGS
from tests.bugs.tree import ROOT, DoesNotApply, Tree, copied

_LOGS = ROOT / "out" / "bugs"
_PASSED, _FAILED = 0, 1  # pytest's exit codes; others mean that it could not run the tests
_GOOD = ("found", "passes")


def play(tree: Tree, bug: Bug, log: Path) -> str:
    """Run the tests of a bug in a tree that has it. Returns the word for the report."""
    try:
        with tree.with_bug(bug):
            code = tree.run(bug, log)
    except DoesNotApply as reason:
        log.write_text(f"{reason}\n")
        return "does not apply any more"
    if code in (_FAILED, None):
        return "found"
    return "NOT FOUND" if code == _PASSED else "the test did not run"


def play_without(tree: Tree, bug: Bug, log: Path) -> str:
    """Run the tests of a bug in a tree without it."""
    return "passes" if tree.run(bug, log) == _PASSED else "FAILS WITHOUT THE BUG"


def chosen(words: list[str], tier: Tier | None) -> list[Bug]:
    """The bugs whose name or source contains one of these; all, if there are none."""
    return [
        bug
        for bug in BUGS
        if (tier is None or bug.tier == tier)
        and (not words or any(word in (bug.name, bug.source) or word in bug.name for word in words))
    ]


def main() -> int:
    """The exit code is 1 if a bug was not found, or could not be put back."""
    parser = argparse.ArgumentParser(prog="python -m tests.bugs", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="NAME", help="a part of the name of a bug")
    parser.add_argument("--list", action="store_true", help="only list the bugs and their tests")
    parser.add_argument("--tier", choices=("test", "test-all", "nightly"), help="only its bugs")
    parser.add_argument("--without", action="store_true", help="run the tests without the bugs")
    options = parser.parse_args()
    bugs = chosen(options.words, options.tier)
    if not bugs:
        parser.error("there is no such bug: see --list")
    if options.list:
        for bug in bugs:
            print(f"{bug.name} ({bug.source})\n    {bug.tier}: {' '.join(bug.found_by)}")
        return 0
    _LOGS.mkdir(parents=True, exist_ok=True)
    words: Counter[str] = Counter()
    begun = time.monotonic()
    with copied() as tree:
        for bug in bugs:
            since, log = time.monotonic(), _LOGS / f"{BUGS.index(bug) + 1}.log"
            word = (play_without if options.without else play)(tree, bug, log)
            words[word] += 1
            print(f"{word:>9} {time.monotonic() - since:6.1f} s  {bug.name}", flush=True)
            if word not in _GOOD:
                print(f"{'':>20} {' '.join(bug.found_by)}: see {log.relative_to(ROOT)}", flush=True)
    told = ", ".join(f"{count} {word}" for word, count in words.items())
    print(f"{len(bugs)} bugs: {told}; {time.monotonic() - begun:.0f} s")
    return 0 if all(word in _GOOD for word in words) else 1


if __name__ == "__main__":
    sys.exit(main())
