"""Commands whose errors show no password and no control character, whatever was typed or stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from jobq.core.printable import one_line
from jobq.core.redact import redacted


def said(message: object) -> str:
    """A message as it may be printed: on one line, with passwords hidden and control characters escaped."""
    return one_line(redacted(str(message)))


class Discreet(click.Command):
    """A command that hides passwords in everything click says about it. Groups do so for their commands too."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read what was typed; a mistake is quoted without passwords."""
        with _discreetly():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _discreetly():
            return super().invoke(ctx)


class DiscreetGroup(Discreet, click.Group):
    """A group of them."""


@contextmanager
def _discreetly() -> Iterator[None]:
    try:
        yield
    except click.ClickException as e:
        # click declares it final; there is no other way to change what an error of its own says.
        e.message = "\n".join(said(line) for line in e.message.split("\n"))  # type: ignore[misc]
        raise
