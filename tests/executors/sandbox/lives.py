"""A process that stands for a worker: hostile jobs rearrange files, and later ones profit from it.

For each case of an arrangement of named paths it makes fresh files, opens them as a worker does,
and forks children one after the other: the first life tries one thing, the second one takes what it
can get, and so does a third one after the worker has been started again. It prints a line of JSON
for each case.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from jobq.core.policies import Permissions
from jobq.errors import ConfigError
from jobq.executors.sandbox import Workspace
from jobq.executors.sandbox.apply import restrict
from jobq.executors.sandbox.granted_files import Confined, Held
from jobq.executors.sandbox.kernel import Kernel, this_kernel_to_a_child
from jobq.executors.sandbox.syscalls import call

_MS_BIND = 4096
_EXCHANGE = 2
_RENAMEAT2 = 316 if os.uname().machine == "x86_64" else 276
_HERE = -100  # AT_FDCWD
# Not what this is about, and each one takes a fork.
_WITHOUT = frozenset({"namespaces", "processes", "limits"})
OPTIONS = (("read",), ("write",), ("read", "write"))


@dataclass(frozen=True)
class Arrangement:
    """Where the named path is, seen from a folder `w` that jobs may write."""

    name: str
    named: str
    refused: bool
    writable: str = "w"
    links: tuple[tuple[str, str], ...] = ()  # the link, and where it leads
    hard: tuple[tuple[str, str], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()  # the place, and the folder that is mounted there
    refused_if_writable: bool = False


ARRANGEMENTS = (
    Arrangement("same", "w", refused=False),
    Arrangement("above", "area", refused=False, writable="area/w", refused_if_writable=True),
    Arrangement("sibling", "in", refused=False),
    Arrangement("sibling file", "in/file", refused=False),
    Arrangement("sibling with the same beginning", "w2", refused=False),
    Arrangement("missing sibling", "later", refused=False),
    Arrangement("up and down to a sibling", "w/../in", refused=False),
    Arrangement("link to a sibling", "link", refused=False, links=(("link", "in"),)),
    Arrangement("hard link to a file below", "hard", refused=False, hard=(("hard", "w/in/file"),)),
    Arrangement("mount of a sibling", "m", refused=False, mounts=(("m", "in"),)),
    Arrangement("below", "w/in", refused=True),
    Arrangement("file below", "w/in/file", refused=True),
    Arrangement("deep below", "w/in/deep", refused=True),
    Arrangement("missing below", "w/later", refused=True),
    Arrangement("up and down to below", "in/../w/in", refused=True),
    Arrangement("up from below", "w/in/../../in", refused=True),
    Arrangement("link to below", "link", refused=True, links=(("link", "w/in"),)),
    Arrangement("link below", "w/link", refused=True, links=(("w/link", "in"),)),
    Arrangement("link by a link", "a", refused=True, links=(("a", "w/b"), ("w/b", "in"))),
    Arrangement(
        "writable by a link", "w/in", refused=True, writable="link", links=(("link", "w"),)
    ),
    Arrangement("mount of below", "m", refused=True, mounts=(("m", "w/in"),)),
    Arrangement("writable by a mount", "w/in", refused=True, writable="m", mounts=(("m", "w"),)),
    Arrangement("mounted below", "in/deep", refused=True, mounts=(("w/m", "in"),)),
    Arrangement("folder of a process", "/proc/self/cwd", refused=True),
)
_FILES = ("in/file", "in/deep/file", "w/in/file", "w/in/deep/file", "w2/file")
_FILES_BESIDE = ("area/file", "area/w/file", "outside/file")
_PLACES = ("in", "w", "w2", "area", "outside", "m", "link", "a", "later", "hard")


# ── what a hostile job tries ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    """One arrangement, who may do what, and what the first life tries."""

    arrangement: str
    options: tuple[str, ...]
    tasks: int  # whether one task has both paths, or two have one each
    action: str


@dataclass
class Outcome:
    """What came of it. Nothing may be in the lists."""

    case: Case
    refused: str = ""
    read: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def _try(fn: Callable[..., object], *args: object) -> None:
    with suppress(OSError):
        fn(*args)


def rename(base: str, named: str, writable: str) -> None:
    _try(os.rename, named, f"{named}.old")
    _try(os.symlink, f"{base}/outside", named)


def rename_parent(base: str, named: str, writable: str) -> None:
    above = os.path.dirname(named)
    _try(os.rename, above, f"{above}.old")
    _try(os.symlink, f"{base}/outside", above)


def symlink(base: str, named: str, writable: str) -> None:
    """Replace everything in the writable folder by links to the outside."""
    for name in ("in", "link", "later", "b", "m", "file"):
        _try(os.rename, f"{writable}/{name}", f"{writable}/{name}.old")
        _try(os.symlink, f"{base}/outside", f"{writable}/{name}")


def remove_and_recreate(base: str, named: str, writable: str) -> None:
    for folder, _, files in list(os.walk(named, topdown=False)):
        for name in files:
            _try(os.unlink, f"{folder}/{name}")
        _try(os.rmdir, folder)
    _try(os.unlink, named)
    _try(os.symlink, f"{base}/outside", named)


def exchange(base: str, named: str, writable: str) -> None:
    """Swap the named path with a link, in one call."""
    link = f"{writable}/swapped"
    _try(os.symlink, f"{base}/outside", link)
    libc = ctypes.CDLL(None)
    libc.syscall(_RENAMEAT2, _HERE, link.encode(), _HERE, named.encode(), _EXCHANGE)


def hard_link(base: str, named: str, writable: str) -> None:
    for folder in (named, writable):
        _try(os.link, f"{base}/outside/file", f"{folder}/linked")
        _try(os.link, f"{base}/w2/file", f"{folder}/linked too")


def move_in(base: str, named: str, writable: str) -> None:
    """Move the outside into a folder that may be used."""
    for folder in (named, writable):
        _try(os.rename, f"{base}/outside", f"{folder}/moved")
        _try(os.rename, f"{base}/outside/file", f"{folder}/moved file")


def move_between(base: str, named: str, writable: str) -> None:
    """Move what may only be written to where it may be read."""
    for name in ("in", "file"):
        _try(os.rename, f"{writable}/{name}", f"{named}/{name} moved")
        _try(os.link, f"{writable}/{name}", f"{named}/{name} linked")


def mount(base: str, named: str, writable: str) -> None:
    for folder in (named, writable):
        _try(
            call,
            "mount",
            ctypes.create_string_buffer(f"{base}/outside".encode()),
            ctypes.create_string_buffer(folder.encode()),
            None,
            _MS_BIND,
            None,
        )


def take_all(base: str, named: str, writable: str) -> None:
    """Nothing but what every later life does."""


ACTIONS = (
    rename,
    symlink,
    move_between,
    rename_parent,
    remove_and_recreate,
    exchange,
    hard_link,
    move_in,
    mount,
    take_all,
)


def _take(base: str, named: str, writable: str) -> list[str]:
    """Read everything that can be read, and write wherever that is possible."""
    texts = set()
    for place in (named, writable, *(f"{base}/{name}" for name in _PLACES)):
        paths = [place, *(f"{place}/{name}" for name in ("file", "in", "deep", "linked", "moved"))]
        for folder, folders, files in os.walk(place, followlinks=True):
            paths += [f"{folder}/{name}" for name in (*folders, *files)]
            if folder.count("/") > base.count("/") + 8:
                break
        for path in dict.fromkeys(paths):
            with suppress(OSError):
                texts.add(Path(path).read_text())
            with suppress(OSError), open(path, "a") as file:
                file.write("changed")
            with suppress(OSError), open(f"{path}/planted", "w") as file:
                file.write("planted")
    return sorted(texts)


# ── the worker ────────────────────────────────────────────────────────────────────────────────────


class World:
    """The files of one case."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.base = tempfile.mkdtemp(prefix="lives-")
        self._mounted: list[str] = []
        for name in (*_FILES, *_FILES_BESIDE):
            path = Path(self.base, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"in {name}. ")
        for link, target in arrangement.links:
            os.symlink(f"{self.base}/{target}", f"{self.base}/{link}")
        for link, target in arrangement.hard:
            os.link(f"{self.base}/{target}", f"{self.base}/{link}")
        for place, folder in arrangement.mounts:
            os.mkdir(f"{self.base}/{place}")
            _bind(f"{self.base}/{folder}", f"{self.base}/{place}")
            self._mounted.append(f"{self.base}/{place}")
        self.named = os.path.join(self.base, arrangement.named)
        self.writable = os.path.join(self.base, arrangement.writable)

    def texts(self, place: str) -> dict[str, str]:
        """The files at a place, and what is in them."""
        if os.path.isfile(place):
            return {place: Path(place).read_text()}
        found = (Path(f, n) for f, _, names in os.walk(place) for n in names)
        return {str(path): path.read_text() for path in found if path.is_file()}

    def close(self) -> None:
        for place in self._mounted:
            call("umount2", ctypes.create_string_buffer(place.encode()), 2)
        shutil.rmtree(self.base)


def _bind(folder: str, place: str) -> None:
    call(
        "mount",
        ctypes.create_string_buffer(folder.encode()),
        ctypes.create_string_buffer(place.encode()),
        None,
        _MS_BIND,
        None,
    )


def run(case: Case, arrangement: Arrangement, kernel: Kernel) -> Outcome:
    """Live three lives."""
    outcome, world = Outcome(case), World(arrangement)
    try:
        action = next(fn for fn in ACTIONS if fn.__name__ == case.action)
        mine: dict[str, Any] = {option: [world.named] for option in case.options}
        if case.tasks == 1:
            mine["write"] = [*mine.get("write", []), world.writable]
            permissions = [Permissions(**mine)]
        else:
            permissions = [Permissions(**mine), Permissions(write=[world.writable])]
        tasks = [Confined(f"task {n}", each) for n, each in enumerate(permissions)]
        try:
            held = Held(tasks)
        except ConfigError as error:
            outcome.refused = str(error)
            return outcome
        readable = world.texts(world.named) if "read" in case.options else {}
        ours = {_identity(path) for path in world.texts(world.writable)}
        if "write" in case.options:
            ours |= {_identity(path) for path in world.texts(world.named)}
        before = {p: t for p, t in world.texts(world.base).items() if _identity(p) not in ours}
        paths = (world.base, world.named, world.writable)
        for each in permissions:
            live(each, held, kernel, lambda: (action(*paths), [])[1])
        for restart in (False, True):
            if restart:
                held.close()
                try:
                    held = Held(tasks)
                except ConfigError:  # what the jobs have done is noticed
                    break
            for each in permissions:
                got = live(each, held, kernel, lambda: _take(*paths))
                allowed = tuple(readable.values())
                outcome.read += [text for text in got if _is_foreign(text, allowed)]
        held.close()
        kept = world.texts(world.base)
        outcome.changed += [path for path, text in before.items() if kept.get(path) != text]
        outcome.changed += [
            path
            for path in kept
            if path.startswith(f"{world.base}/outside/") and path not in before
        ]
    finally:
        world.close()
    return outcome


def _is_foreign(text: str, readable: tuple[str, ...]) -> bool:
    """Whether a text comes from a file that was not to be read."""
    own = text.replace("changed", "").replace("planted", "")
    return bool(own) and own not in readable


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def live(
    permissions: Permissions, held: Held, kernel: Kernel, job: Callable[[], list[str]]
) -> list[str]:
    """Run a job in a child with permissions. Returns what it has read."""
    ours, theirs = os.pipe()
    workspace = Workspace(tempfile.mkdtemp(prefix="jobq-"), inherited=held.descriptors(permissions))
    child = os.fork()
    if child == 0:
        said = ["the child is broken"]
        with suppress(BaseException):
            restrict(
                permissions,
                kernel=kernel,
                keep_fds=[theirs],
                workspace=workspace,
                without=_WITHOUT,
            )
            said = job()
        os.write(theirs, json.dumps(said).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        said = list(json.loads(pipe.read()))
    os.waitpid(child, 0)
    workspace.close()
    return said


def cases(arrangement: Arrangement) -> Iterator[Case]:
    """All cases of an arrangement. If it is refused, it does not matter what a job would do.

    With two tasks, jobs of both live each life, so fewer actions have to do.
    """
    for options, tasks in product(OPTIONS, (1, 2)):
        refused = arrangement.refused or (arrangement.refused_if_writable and "write" in options)
        for action in ACTIONS[:1] if refused else ACTIONS if tasks == 1 else ACTIONS[:3]:
            yield Case(arrangement.name, options, tasks, action.__name__)


def replaced_by_others(kernel: Kernel) -> dict[str, list[str]]:
    """What a job can read after somebody else has replaced its folder. By path: texts."""
    world = World(ARRANGEMENTS[0])
    place = f"{world.base}/in"
    permissions = Permissions(read=[place])
    held = Held([Confined("task", permissions)])
    os.rename(place, f"{place}.old")
    os.symlink(f"{world.base}/outside", place)

    def read() -> list[str]:
        texts = []
        for path in (f"{place}/file", f"{place}.old/file"):
            with suppress(OSError):
                texts.append(Path(path).read_text())
        return texts

    while_held = live(permissions, held, kernel, read)
    held.close()
    held = Held([Confined("task", permissions)])
    after_a_restart = live(permissions, held, kernel, read)
    held.close()
    world.close()
    return {"while held": while_held, "after a restart": after_a_restart}


def main(name: str) -> None:
    # The code of this repository takes long to look through, and children need no more of it.
    sys.path[:] = [entry for entry in sys.path if "python3" in entry]
    kernel = this_kernel_to_a_child()
    if name == "replaced by others":
        sys.stdout.write(json.dumps(replaced_by_others(kernel)))
        return
    arrangement = next(each for each in ARRANGEMENTS if each.name == name)
    for case in cases(arrangement):
        sys.stdout.write(json.dumps(asdict(run(case, arrangement, kernel))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
