"""The pages of the command lines, from what `--help` shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

from jobq.cli.options import GlobalOption

FOLDER = Path("reference/commands")
PROGRAMS = {
    "jq-ctl": ("jobq.cli.ctl", "shows jobs, queues and workers, and acts on them"),
    "jq-worker": ("jobq.cli.worker", "runs the jobs of your application"),
    "jq-server": ("jobq.cli.server", "serves a store over gRPC"),
    "jq-relay": ("jobq.relay.cli", "ships the event log to Kafka or to files"),
    "jq-pipeline": ("jobq.pipeline.cli", "builds tables and reports of events on Spark"),
}
BLOCK = "\b"
"""Where click keeps the lines of a paragraph as they are."""


def texts() -> dict[Path, str]:
    """The pages of all programs, by their place on the site."""
    pages = {FOLDER / f"{name}.md": program(name) for name in PROGRAMS}
    rows = [f"| [{name}]({name}.md) | {does} |" for name, (_, does) in PROGRAMS.items()]
    head = ["# Commands", "", "Every command with its options, as `--help` shows them."]
    head += ["[The command lines](../../guide/cli.md) explains how they work together.", ""]
    pages[FOLDER / "index.md"] = "\n".join([*head, "| program | |", "|---|---|", *rows, ""])
    return pages


def program(name: str) -> str:
    """The page of a program: its own options, then those of its commands."""
    command = import_module(PROGRAMS[name][0]).main
    assert isinstance(command, click.Command)
    return "\n".join(_described(command, click.Context(command, info_name=name), 1))


def _described(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * min(level, 3)} {context.command_path}"
    yield ""
    if command.deprecated:
        yield "Deprecated."
        yield ""
    yield "```text"
    yield " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield "```"
    yield ""
    yield from _prose(command.help or "")
    examples: str | None = getattr(command, "examples", None)  # of jq-ctl
    if examples:
        yield from ("```text", *_dedented(examples.strip("\n").rstrip().split("\n")), "```", "")
    rows = list(_options(command, context))
    if rows:
        yield from ("| option | |", "|---|---|", *rows, "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                inner = click.Context(child, info_name=name, parent=context)
                yield from _described(child, inner, level + 1)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        if context.parent is not None and isinstance(parameter, GlobalOption):
            continue  # the page's first table has them
        record = parameter.get_help_record(context)
        if record is not None:
            names, meaning = record
            yield f"| `{_cell(names)}` | {_cell(_escaped(meaning))} |"


def _prose(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.lstrip("\n").startswith(BLOCK):
            lines = paragraph.lstrip("\n").removeprefix(BLOCK).strip("\n").split("\n")
            if lines and lines[0].rstrip().endswith(":"):
                yield from (_escaped(lines.pop(0).strip()), "")
            yield from ("```text", *_dedented(lines), "```", "")
        else:
            yield from (_escaped(" ".join(paragraph.split())), "")


def _dedented(lines: list[str]) -> list[str]:
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[depth:] for line in lines]


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: `*` and `_` are not emphasis, `<` begins no tag."""
    return re.sub(r"([*_<\[\]`])", r"\\\1", text)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
