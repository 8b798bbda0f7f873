"""Calls jq-ctl for the tests of the command lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from click.testing import CliRunner, Result

from jobq.cli.ctl import main


def commands_of(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group by their names. Those of jq-ctl are imported."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield name, command


class Ctl:
    """Runs jq-ctl commands on one store."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, input: str | None = None, code: int = 0) -> Result:
        """Run a command. It must exit with `code` and print no traceback."""
        result = CliRunner().invoke(main, ["--url", self.url, *args], input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, input: str | None = None, code: int = 0) -> Any:
        """Run a command with -o json and decode its output."""
        return json.loads(self(*args, "-o", "json", input=input, code=code).stdout)
