"""Sets of numbers as sorted ranges, both ends included: [(1, 7), (9, 9)]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]
Ranges = Sequence[Range]


def union(*sets: Iterable[Range]) -> list[Range]:
    """All numbers of these sets. Adjacent ranges become one."""
    found: list[Range] = []
    for first, last in sorted(range for ranges in sets for range in ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def minus(ranges: Ranges, others: Ranges) -> list[Range]:
    """The numbers of `ranges` that are not in `others`."""
    found = []
    others = union(others)
    for first, last in union(ranges):
        for begin, end in others:
            if end < first or begin > last:
                continue
            if begin > first:
                found.append((first, begin - 1))
            first = end + 1
        if first <= last:
            found.append((first, last))
    return found


def both(ranges: Ranges, others: Ranges) -> list[Range]:
    """The numbers that are in both sets."""
    return minus(ranges, minus(ranges, others))


def missing(ranges: Ranges, first: int, last: int) -> list[Range]:
    """The numbers from `first` to `last` that are not in `ranges`."""
    return minus([(first, last)], ranges) if first <= last else []


def size(ranges: Ranges) -> int:
    """How many numbers there are."""
    return sum(last - first + 1 for first, last in ranges)


def of_words(words: Iterable[tuple[int, int]]) -> list[Range]:
    """The numbers of a bitmap: pairs of a word's index and its 64 bits (as a signed integer)."""
    found: list[Range] = []
    for index, mask in sorted(words):
        bits = mask & 0xFFFF_FFFF_FFFF_FFFF
        while bits:
            low = (bits & -bits).bit_length() - 1
            run = ((bits >> low) + 1 & ~(bits >> low)).bit_length() - 1  # ones from `low` on
            first = index * 64 + low
            found.append((first, first + run - 1))
            bits &= ~(((1 << run) - 1) << low)
    return union(found)


def text(ranges: Ranges, most: int = 3) -> str:
    """As people write it: `1,204–1,377, 1,400 and 2 more ranges`."""
    shown = [f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in ranges[:most]]
    more = len(ranges) - most
    return ", ".join(shown) + (f" and {more:,} more ranges" if more > 0 else "")
