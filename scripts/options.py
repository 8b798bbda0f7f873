"""Write what follows from the table of options (core/rules/options.py) where a loop would not do.

python scripts/options.py           write the lines between the marks of each file
python scripts/options.py --check   exit 1 if a file is not up to date

Type checkers and editors look at the classes, and paths that every job takes have no time for a
loop. A mark is `begin scripts/options.py: part`, in a comment.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from jobq.core.records.jobs import JobSpec, Lease
from jobq.core.rules.options import APPLIED, BY_NAME, FIELDS, OPTIONS, TASK_OPTIONS, Option
from jobq.stores.relational.packed import STORE_FIELDS_AT, StoreFields

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "src/jobq/core/rules/new_jobs.py",
    "src/jobq/core/records/jobs.py",
    "src/jobq/stores/relational/packed.py",
    "src/jobq/stores/relational/claim.py",
    "src/jobq/stores/valkey/stored_job.py",
    "src/jobq/stores/valkey/jobs.py",
    "src/jobq/api/options.py",
    "src/jobq/api/info.py",
    "docs/guide/tasks.md",
)
_MARKED = re.compile(
    r"^(?P<begin>(?P<indent> *)(?:# |<!-- )begin scripts/options\.py: (?P<part>\w+).*\n)"
    r"(?:.*\n)*?"
    r"(?P<end> *(?:# |<!-- )end scripts/options\.py.*\n)",
    re.MULTILINE,
)
_TYPES = JobSpec.__annotations__
_WIDTH = 100
Lines = Iterator[str]


# ── core and stores ───────────────────────────────────────────────────────────────────────────────


def call_options() -> Lines:
    """The fields of CallOptions: what is stored of a call, and is no field of a JobRecord."""
    for option in FIELDS:
        if option.of_call:
            yield _declared(option)


def is_plain() -> Lines:
    """The conditions of `has_no_options`."""
    return _conditions(FIELDS, exact=True)


def is_null() -> Lines:
    """The conditions of `has_defaults`."""
    return _conditions([option for option in FIELDS if option.packed is not None])


def _conditions(options: Iterable[Option], *, exact: bool = False) -> Lines:
    """Comparisons with the defaults. Texts come last, because comparing them takes longer."""
    found = []
    for option in sorted(options, key=lambda each: isinstance(each.default, str)):
        value = f"spec.{option.field}"
        if not isinstance(option.default, str):
            found.append(f"{value} is {_CONSTANTS.get(repr(option.default), option.default)}")
            continue
        if exact:
            found.append(f"type({value}) is str")
        found.append(f'{value} == "{option.default}"')
    yield found[0]
    yield from (f"and {each}" for each in found[1:])


_CONSTANTS = {"0": "_ZERO", "1": "_ONE", "()": "_NOTHING"}


def packed() -> Lines:
    """The fields of StoredOptions of the SQL stores, in the order of the array."""
    positions = {position: _store_field(name) for name, position in STORE_FIELDS_AT.items()}
    for option in FIELDS:
        if option.kind == "unique" and option.packed is not None:
            parts = ("lock: str", "lock_mode: UniqueMode", "lock_ttl_ms: int")
            positions |= {
                option.packed + n: f"{part} | None = None" for n, part in enumerate(parts)
            }
        elif option.packed is not None:
            assert option.packed not in positions, f"{option.field}: place {option.packed} is taken"
            positions[option.packed] = _declared(option)
    assert sorted(positions) == list(range(len(positions))), "a place of the array is free"
    return (positions[position] for position in range(len(positions)))


def _store_field(name: str) -> str:
    kind = StoreFields.__annotations__[name].__forward_arg__
    return f"{name}: {kind} = {None if 'None' in kind else 0}"


def pack() -> Lines:
    """The arguments of StoredOptions in `options_of`, without the lock."""
    for option in FIELDS:
        if option.packed is not None and option.kind != "unique":
            yield f"{option.field}=spec.{option.field},"


def recorded() -> Lines:
    """The fields of StoredOptions of the Valkey store, without the lock."""
    for option in FIELDS:
        name = option.recorded or {"delay_ms": "delay", "at_ms": "at"}.get(option.field)
        if name is None:
            continue
        line = _declared(option)
        if name != option.field:
            line, _, default = line.partition(" = ")
            line += f' = field(name="{name}", default={default})'
        yield line


def lease() -> Lines:
    """The arguments of a Lease."""
    for option in FIELDS:
        if option.lease:
            assert option.field in Lease.__struct_fields__, f"Lease has no {option.field}"
            yield f"{option.field}=options.{option.field},"


def _declared(option: Option) -> str:
    """The field as JobSpec has it."""
    kind = re.sub(r"Annotated\[(.*), msgspec\.Meta\(.*\)\]", r"\1", _TYPES[option.field])
    default = f'"{option.default}"' if isinstance(option.default, str) else option.default
    return f"{option.field}: {kind} = {default}"


# ── the public API ────────────────────────────────────────────────────────────────────────────────


def job_options() -> Lines:
    """The keys of JobOptions."""
    for option in BY_NAME.values():
        kind = option.type or _GIVEN.get(option.kind) or _TYPES[option.field]
        yield from _documented(option.name, kind, option.help)


def task_options() -> Lines:
    """The keys that TaskOptions adds."""
    for option in TASK_OPTIONS:
        yield from _documented(option.name, option.type, option.help)


def applied_options() -> Lines:
    """The fields of AppliedOptions."""
    for option in APPLIED:
        kind = _SHOWN.get(option.kind) or _TYPES[option.field]
        if option.by_worker:
            kind = f"ByWorker | {kind if option.kind == 'span' else kind.removesuffix(' | None')}"
        yield from _documented(option.name, kind, option.help)


_GIVEN = {
    "text": "str",
    "count": "int",
    "flag": "bool",
    "span": "Seconds",
    "moment": "datetime",
    "meta": "Mapping[str, str]",
}
_SHOWN = {
    "span": "timedelta | None",
    "moment": "datetime | None",
    "retry": "Retry",
    "unique": "UniqueLock | None",
}


def _documented(name: str, kind: str, words: str) -> Lines:
    yield f"{name}: {kind}"
    lines = textwrap.wrap(f'"""{words}"""', _WIDTH - 4)
    if len(lines) > 1 and len(lines[-1]) < len('."""'):  # the quotes stay with a word
        lines = textwrap.wrap(f'"""{words}"""', _WIDTH - 8)
    yield from lines


# ── the guide ─────────────────────────────────────────────────────────────────────────────────────


def guide() -> Lines:
    """The table of options."""
    yield ""
    yield "| option | meaning |"
    yield "|---|---|"
    for option in BY_NAME.values():
        yield f"| `{option.name}` | {' '.join(filter(None, (option.help, option.guide)))} |"
    for each in TASK_OPTIONS:
        words = " ".join(filter(None, (each.help, each.guide)))
        yield f"| `{each.name}` *(task only)* | {words} |"
    yield ""


PARTS: dict[str, Callable[[], Lines]] = {
    part.__name__: part
    for part in (
        call_options, is_plain, is_null, packed, pack, recorded, lease,
        job_options, task_options, applied_options, guide,
    )
}  # fmt: skip


def written(text: str) -> str:
    """A file with the lines that belong between its marks."""

    def lines(match: re.Match[str]) -> str:
        made = PARTS[match["part"]]()
        inside = "".join(f"{match['indent']}{line}".rstrip() + "\n" for line in made)
        return match["begin"] + inside + match["end"]

    return _MARKED.sub(lines, text)


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    assert [each.field for each in FIELDS] == list(JobSpec.__struct_fields__[4:])
    assert len(OPTIONS) == len(FIELDS) + 1
    stale = []
    for name in FILES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    if "--check" in arguments and stale:
        print(
            f"{', '.join(stale)}: not as core/rules/options.py says: run scripts/options.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
