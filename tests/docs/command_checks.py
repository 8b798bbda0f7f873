"""Whether a command that the documentation shows can be typed: its options, targets and names."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
from google.protobuf import json_format
from google.protobuf.descriptor_pool import Default as default_pool
from google.protobuf.message_factory import GetMessageClass

from tests.docs.blocks import ROOT

PROGRAMS = {
    "jq-ctl": "jobq.cli.ctl",
    "jq-worker": "jobq.cli.worker",
    "jq-server": "jobq.cli.server",
    "jq-relay": "jobq.relay.cli",
    "jq-pipeline": "jobq.pipeline.cli",
}
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
CHECKED = ("make", "pip")
"""Programs whose commands are complete when their names are right. CI runs the targets."""


def check(words: list[str]) -> None:
    """Raise an error that says what is wrong with a command."""
    program, arguments = words[0], words[1:]
    if program in PROGRAMS and arguments:
        parse(program, arguments)
    elif program == "make":
        assert arguments[0] in TARGETS, f"there is no target {arguments[0]}"
    elif program == "pip":
        _check_extras(arguments)
    elif program == "python":
        _check_python(arguments)
    elif program == "grpcurl":
        _check_call(arguments)


def parse(program: str, arguments: list[str]) -> click.Context:
    """Parse a command line of jobq as its program does, down to the last subcommand."""
    command: click.Command = import_module(PROGRAMS[program]).main
    context = command.make_context(program, list(arguments))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, child, rest = context.command.resolve_command(context, rest)
        assert child is not None
        context = child.make_context(name, rest, parent=context)
    return context


def _check_extras(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    for name in arguments[1:]:
        package = re.fullmatch(r"(?:jobq|\.)(?:\[([a-z,]+)\])?", name)
        assert package is not None, f"pip install {name}: is it a package of jobq?"
        for extra in (package[1] or "").split(","):
            assert not extra or extra in EXTRAS, f"there is no extra {extra}"


def _check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        assert find_spec(arguments[1]) is not None, f"there is no module {arguments[1]}"
    else:
        names = (arguments[0], f"examples/{arguments[0]}", f"examples/*/{arguments[0]}")
        found = [path for name in names for path in ROOT.glob(name)]
        assert found, f"no file or example is called {Path(arguments[0]).name}"


def _check_call(arguments: list[str]) -> None:
    """A call of a jq-server: the method exists, and the request is one of its messages."""
    import_module("jobq.rpc.v1.jobs_pb2")
    import_module("jobq.rpc.v1.workers_pb2")
    method = arguments[-1]
    if method == "list":
        return
    service, name = method.split("/")
    found = default_pool().FindServiceByName(service).FindMethodByName(name)
    request = GetMessageClass(found.input_type)()
    json_format.Parse(arguments[arguments.index("-d") + 1], request)
