"""click commands whose error messages never contain passwords or control characters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from jobq.core.values.printable import one_line, redacted


def safe_message(message: object) -> str:
    """Make a message safe to print: one line, passwords hidden, control characters escaped."""
    return one_line(redacted(str(message)))


class Discreet(click.Command):
    """A command that hides passwords in click's error messages. A group covers its commands."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the arguments. An error that quotes them hides passwords."""
        with _discreetly():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _discreetly():
            return super().invoke(ctx)


class DiscreetGroup(Discreet, click.Group):
    """A group that hides passwords in the errors of all its commands."""


@contextmanager
def _discreetly() -> Iterator[None]:
    try:
        yield
    except click.ClickException as e:
        # click declares `message` final, but there is no other way to change an error of click.
        e.message = "\n".join(safe_message(line) for line in e.message.split("\n"))  # type: ignore[misc]
        raise
