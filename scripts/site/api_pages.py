"""The pages of the API reference: every name of tests/api/public_names.txt, from its docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jobq

NAMES = Path("tests/api/public_names.txt")
FOLDER = Path("reference")

# The pages of `jobq` and the names on them. Names that are not listed: errors are on the page of
# errors, classes whose names begin with Sync on that of the blocking API, the rest on the last one.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "Queue": ("Queue", "Retention", "QueueStats", "MinuteMetrics"),
    "Tasks": (
        "Task",
        "AsyncTask",
        "PlainTask",
        "BatchTask",
        "Tasks",
        "TaskOptions",
        "JobOptions",
        "AppliedOptions",
        "Retry",
        "Unique",
        "UniqueLock",
        "Permissions",
        "Seconds",
    ),
    "Job": (
        "Job",
        "JobInfo",
        "JobRef",
        "JobUpdate",
        "State",
        "Failure",
        "Undecoded",
        "StepInfo",
        "JobLock",
        "LockInfo",
    ),
    "Worker": ("Worker", "WorkerInfo", "Stopped"),
    "Inside a handler": (
        "current_job",
        "CurrentJob",
        "Snooze",
        "Reject",
        "RetryAfter",
        "RateLimited",
    ),
    "Hooks": (
        "Depends",
        "Middleware",
        "CallNext",
        "EnqueueMiddleware",
        "EnqueueNext",
        "EnqueueRequest",
        "Ending",
        "ending_of",
        "on_start",
        "on_success",
        "on_failure",
    ),
    "Flows": ("Flow", "FlowTree", "FlowNode", "chain", "chord", "group", "Call"),
    "Schedules": ("Cron", "Every", "ScheduleInfo", "MissedTime"),
    "Limits": ("Rate", "Bucket", "QueueLimits", "KeyLimits"),
    "Finding jobs": ("Selection", "JobCriteria", "Preview", "BulkProgress"),
    "Events": ("Event", "EventStream"),
    "Transactions": ("transaction",),
    "Codecs": ("Codec",),
}
ERRORS, BLOCKING, REST = "Errors", "Blocking API", "Other names"


class ApiPage(NamedTuple):
    """A page of the reference: its file, title, and the names on it with their members."""

    file: Path
    title: str
    names: Mapping[str, list[str]]


def pages(root: Path) -> list[ApiPage]:
    """One page for each subject of `jobq`, and one for each module that users import by name."""
    listed = (root / NAMES).read_text(encoding="utf-8").split()
    modules = {name.rpartition(".")[0] for name in listed if name.split(".")[1].islower()}
    modules = {module for module in modules if module != "jobq" and module.split(".")[-1].islower()}
    own: dict[str, list[str]] = {}
    others: dict[str, dict[str, list[str]]] = {module: {} for module in sorted(modules)}
    for name in listed:
        module = next((m for m in sorted(modules) if name.startswith(f"{m}.")), "jobq")
        first, _, member = name.removeprefix(f"{module}.").partition(".")
        group = own if module == "jobq" else others[module]
        group.setdefault(f"{module}.{first}", [])
        if member:
            group[f"{module}.{first}"].append(member)
    return [*_of_jobq(own), *(_of_module(module, names) for module, names in others.items())]


def text(page: ApiPage) -> str:
    """The Markdown of a page: a directive per name, which the generator replaces."""
    return "\n".join([f"# {page.title}", "", *_directives(page.names)])


def index(found: Iterable[ApiPage]) -> str:
    """The first page of the reference: every page with the names on it."""
    rows = [
        f"| [{page.title}]({page.file.name}) | "
        + ", ".join(f"`{name.rpartition('.')[2]}`" for name in page.names)
        + " |"
        for page in found
    ]
    return "\n".join(
        [
            "# API",
            "",
            "Every public name, with its docstring. Names that are not on these pages are private",
            "and may change in any release. [Commands](commands/index.md) have their own pages.",
            "",
            "| page | names |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _of_jobq(names: dict[str, list[str]]) -> Iterator[ApiPage]:
    subjects = {title: [f"jobq.{name}" for name in group] for title, group in SUBJECTS.items()}
    subjects |= {BLOCKING: [], ERRORS: [], REST: []}
    placed = {name for group in subjects.values() for name in group}
    for name in names:
        if name not in placed:
            subjects[_kind(name)].append(name)
    for title, group in subjects.items():
        there = {name: names[name] for name in group if name in names}
        if there:
            file = FOLDER / f"{title.lower().replace(' ', '-')}.md"
            yield ApiPage(file, title, there)


def _of_module(module: str, names: dict[str, list[str]]) -> ApiPage:
    return ApiPage(FOLDER / f"{module}.md", module, names)


def _kind(name: str) -> str:
    value = getattr(jobq, name.removeprefix("jobq."))
    if inspect.isclass(value) and issubclass(value, BaseException):
        return ERRORS
    return BLOCKING if name.startswith("jobq.Sync") else REST


def _directives(names: Mapping[str, list[str]]) -> Iterator[str]:
    for name, members in names.items():
        yield f"::: {name}"
        yield "    options:"
        # In JSON, which is YAML: the bare name `on` would be read as true.
        yield f"      members: {json.dumps(members or False)}"
        yield ""
