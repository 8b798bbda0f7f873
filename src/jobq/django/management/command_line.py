"""manage.py commands that pass their arguments on to a command line of jobq."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
from django.core.management.base import BaseCommand, CommandError, DjangoHelpFormatter

from jobq.errors import ConfigError

_OF_DJANGO = ("--settings", "--pythonpath")
"""Options that manage.py has read before the command starts."""


class CommandLine(BaseCommand):
    """A command of manage.py whose arguments are those of a command line of jobq."""

    requires_system_checks: ClassVar[list[str]] = []
    program: str
    main: click.Command

    def prepare(self) -> None:
        """Check what the command needs. CommandError or ConfigError says what is missing."""

    def first_arguments(self) -> list[str]:
        """What is put before the user's arguments."""
        return []

    def defaults(self) -> Mapping[str, Any]:
        """Defaults of options that the user does not give."""
        return {}

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Called by manage.py. Ends the process with the exit code of the command line."""
        asks_for_help = "--help" in argv or "-h" in argv
        try:
            if not asks_for_help:
                self.prepare()
            first, defaults = self.first_arguments(), dict(self.defaults())
        except (CommandError, ConfigError) as error:
            self.stderr.write(f"Error: {error}")
            sys.exit(2)
        self.main.main(
            args=[*first, *_without_options_of_django(argv[2:])],
            prog_name=f"{_program(argv[0])} {argv[1]}",
            default_map=defaults,
        )

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Called by `manage.py help`."""
        self.main.main(
            args=["--help"], prog_name=f"{_program(prog_name)} {subcommand}", standalone_mode=False
        )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Called by `call_command`."""
        return _Parser(prog=subcommand, formatter_class=DjangoHelpFormatter, add_help=False)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Called by `call_command`. Raises CommandError if the command line fails."""
        try:
            with contextlib.redirect_stdout(options.get("stdout") or self.stdout._out):
                code = self.main.main(
                    args=[*self.first_arguments(), *options["arguments"]],
                    prog_name=f"manage.py {self.program}",
                    default_map=dict(self.defaults()),
                    standalone_mode=False,
                )
        except click.ClickException as error:
            raise CommandError(error.format_message(), returncode=error.exit_code) from error
        if code:
            raise CommandError(f"{self.program} failed", returncode=code)
        return None


class _Parser(argparse.ArgumentParser):
    """Takes every argument as it is."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return argparse.Namespace(arguments=list(args or ()), args=())


def _program(path: str) -> str:
    name = Path(path).name
    return "python -m django" if name == "__main__.py" else name


def _without_options_of_django(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in _OF_DJANGO:
            skip = True
        elif not argument.startswith(tuple(f"{option}=" for option in _OF_DJANGO)):
            kept.append(argument)
    return kept
