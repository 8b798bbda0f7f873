"""Removes folders that a hostile program has filled."""

from __future__ import annotations

import os

_OPEN = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def remove_contents(folder: str, limit: int | None = None) -> bool:
    """Remove what is in a folder, at most `limit` entries. Returns whether it is empty then.

    Folders may be nested deeper than a path or Python's stack can be, so this walks down and up
    with one open descriptor. Links are not followed. What cannot be removed is left.
    """
    here = os.open(folder, _OPEN)
    ancestors: list[str] = []  # names of the folders on the way to `here`
    kept: list[set[str]] = [set()]  # for each of them, what cannot be removed
    removed = 0
    try:
        while limit is None or removed < limit:
            below, count = _remove_files(here, kept[-1], limit and limit - removed)
            removed += count
            if below is not None:
                here = _move(here, below)
                ancestors.append(below)
                kept.append(set())
            elif limit is not None and removed >= limit:
                break
            elif not ancestors:
                return not kept[-1]
            else:
                here = _move(here, "..")
                kept.pop()
                removed += 1
                name = ancestors.pop()
                try:
                    os.rmdir(name, dir_fd=here)
                except OSError:
                    kept[-1].add(name)
        return False
    finally:
        os.close(here)


def _remove_files(here: int, kept: set[str], limit: int | None) -> tuple[str | None, int]:
    """Remove the files of a folder. Returns the first folder in it, and how many it removed."""
    count = 0
    below = None
    with os.scandir(here) as entries:
        for entry in entries:
            if entry.name in kept:
                continue
            if limit is not None and count >= limit:
                break
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=here)
                    count += 1
                elif below is None:
                    _let_in(entry.name, here)
                    below = entry.name
            except OSError:
                kept.add(entry.name)
    return below, count


def _let_in(name: str, here: int) -> None:
    """Make sure that the folder can be entered: its mode may forbid that to its owner."""
    try:
        os.close(os.open(name, _OPEN, dir_fd=here))
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=here)
        os.close(os.open(name, _OPEN, dir_fd=here))


def _move(here: int, name: str) -> int:
    """Open a neighbour of the open folder instead of it."""
    there = os.open(name, _OPEN, dir_fd=here)
    os.close(here)
    return there
