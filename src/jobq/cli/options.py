"""What all jq-ctl commands share.

Global options are accepted anywhere on the command line, help ends with examples, and errors are
printed as one line."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import update_wrapper
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Literal, NoReturn, ParamSpec, cast

import click

from jobq.cli.address import (
    DEFAULT_URL,
    SERVER_ADDR_HELP,
    TLS_HELP,
    TLS_OPTIONS,
    TOKEN_FILE_HELP,
    Address,
    WrongAddress,
    use_token_file,
)
from jobq.console.safe_errors import Discreet, DiscreetGroup, safe_message
from jobq.core.values.units import parse_duration, parse_size
from jobq.errors import ConfigError, InvalidJob, JobqError

P = ParamSpec("P")
Format = Literal["table", "json", "yaml"]
FORMATS: tuple[Format, ...] = ("table", "json", "yaml")
FAILED, USAGE, INTERRUPTED = 1, 2, 130
_INSTEAD_OF = {"url": "server_addr", "server_addr": "url"}
_READ_BY_ADDRESS = {*_INSTEAD_OF, *TLS_OPTIONS, "token_file"}
"""Options whose variables are read elsewhere, by their own order of precedence."""
_SERVER_ADDR_HELP = SERVER_ADDR_HELP.replace("Cannot be combined with", "Instead of")


# ── parameter types ───────────────────────────────────────────────────────────────────────────────


if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _Seconds = click.ParamType[float]
    _Bytes = click.ParamType[int]
else:  # generic since click 8.2 only
    _Seconds = _Bytes = click.ParamType


class Duration(_Seconds):
    """Seconds, or 500ms, 15m, 1h30m, 7d."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a number of seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_duration(value)
        except ValueError as e:
            self.fail(str(e), param, ctx)


DURATION = Duration()


class Size(_Bytes):
    """Bytes, or 2kb, 1.5M."""

    name = "size"

    def __init__(self, *, zero: bool = False) -> None:
        """`zero`: 0 is allowed too."""
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number of bytes."""
        if self._zero and str(value) == "0":
            return 0
        try:
            return parse_size(str(value))
        except ValueError as e:
            self.fail(str(e), param, ctx)


queue_option = click.option(
    "-q", "--queue", metavar="NAME", help="Queue. Default: search all queues for the id."
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


# ── commands that take the global options anywhere ────────────────────────────────────────────────


class GlobalOption(click.Option):
    """An option that is accepted before and after the command. The rightmost one wins."""


def _global_options(*, env: bool) -> list[click.Parameter]:
    # Only the root reads the environment: a command that did would override options before it.
    def option(names: list[str], variable: str, **attrs: Any) -> GlobalOption:
        return GlobalOption(
            names,
            expose_value=False,
            callback=_remember,
            envvar=variable if env else None,
            show_envvar=env,
            **attrs,
        )

    return [
        option(
            ["--url"],
            "JQ_URL",
            metavar="URL",
            help="Store, e.g. sqlite:///jobs.db or valkey://host:6379. Default: sqlite:///jobq.db.",
        ),
        option(["--server-addr"], "JQ_SERVER_ADDR", metavar="HOST:PORT", help=_SERVER_ADDR_HELP),
        option(["--token-file"], "JQ_TOKEN_FILE", metavar="FILE", help=TOKEN_FILE_HELP),
        *(
            option(
                [f"--{name.replace('_', '-')}"],
                f"JQ_{name.upper()}",
                metavar="FILE",
                help=TLS_HELP[name],
            )
            for name in TLS_OPTIONS
        ),
        option(
            ["--tenant"],
            "JQ_TENANT",
            metavar="NAME",
            help="Tenant. Default: the tenant of the token, else default.",
        ),
        option(
            ["-o", "--output"],
            "JQ_OUTPUT",
            type=click.Choice(FORMATS),
            help="Output format. Default: table.",
        ),
        option(
            ["--timeout"],
            "JQ_TIMEOUT",
            type=DURATION,
            metavar="TIME",
            help="How long to wait for each reply of the store. Default: 10s.",
        ),
    ]


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    name = param.name or ""
    from_environment = ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
    if value is None or (from_environment and name in _READ_BY_ADDRESS):
        return value
    ctx.meta[f"jobq.{name}"] = value  # meta is shared by a command and its parents
    if name in _INSTEAD_OF:  # of --url and --server-addr, the rightmost one wins
        ctx.meta.pop(f"jobq.{_INSTEAD_OF[name]}", None)
    return value


class _Helped(Discreet):
    """Formats help: the command's own options, then the global ones, then examples."""

    is_root = False

    def __init__(self, *args: Any, examples: str | None = None, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.examples = examples
        self.params.extend(_global_options(env=self.is_root))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both sections of options, and the commands of a group."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None and not isinstance(
                param, click.Argument
            ):
                (shared if isinstance(param, GlobalOption) else own).append(record)
        for title, records in (("Options", own), ("Global options", shared)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples without wrapping, so that they can be copied."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples.strip().splitlines():
                    formatter.write(f"  {line.strip()}\n")


class Command(_Helped):
    """A command of jq-ctl."""


class Noun(_Helped, DiscreetGroup):
    """The commands for one kind of object. `aliases` are alternative command names."""

    command_class = Command
    aliases: ClassVar[dict[str, str]] = {"retry": "rerun", "ls": "list", "rm": "remove"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of definition."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command by its name or alias."""
        return super().get_command(ctx, cmd_name) or super().get_command(
            ctx, self.aliases.get(cmd_name, cmd_name)
        )


class Root(Noun):
    """jq-ctl itself. Only the root reads options from the environment.

    `nouns` names its commands: what each does, and the module that defines it under that name. It
    is imported when the command is used, so `jq-ctl --help` and the completion of a noun import
    none."""

    is_root = True

    def __init__(
        self, *args: Any, nouns: Mapping[str, tuple[str, str]] | None = None, **attrs: Any
    ) -> None:
        super().__init__(*args, **attrs)
        self.nouns = nouns or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(self.nouns)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name in self.nouns and cmd_name not in self.commands:
            _, module = self.nouns[cmd_name]
            self.add_command(getattr(import_module(module), cmd_name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. For an unknown one, click suggests names of commands that it has."""
        if args[0] not in self.nouns:
            for name in self.nouns:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, does) for name, (does, _) in self.nouns.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin like this."""
        from click.shell_completion import CompletionItem

        return [
            *(
                CompletionItem(name, help=does)
                for name, (does, _) in self.nouns.items()
                if name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]


def noun(name: str, help: str) -> Noun:
    """Create a group. Add commands with `@group.command()`."""
    return Noun(name, help=help)


# ── running ───────────────────────────────────────────────────────────────────────────────────────


class Ctl:
    """Passed to every command: the store, and where to print the result."""

    def __init__(self, ctx: click.Context) -> None:
        # Here, because --help needs neither a store nor tables.
        from jobq.cli.backend import Backend
        from jobq.cli.output import Output

        given: Callable[[str], Any] = lambda name: ctx.meta.get(f"jobq.{name}")  # noqa: E731 - read often, here only
        self.out = Output(cast(Format, given("output") or "table"))
        use_token_file(given("token_file"))
        try:
            self.backend = Backend(
                chosen_url(ctx) or DEFAULT_URL,
                tenant=given("tenant"),
                timeout=given("timeout") or 10.0,
            )
        except ConfigError as e:  # e.g. the token is for another tenant
            fail(str(e), USAGE, e)


def chosen_url(ctx: click.Context) -> str | None:
    """The store that the command line names, or else the environment; None if neither does."""
    address = Address(*(ctx.meta.get(f"jobq.{name}") for name in Address._fields))
    try:
        return address.given() or address.from_environment()
    except WrongAddress as e:
        fail(str(e), USAGE, e)


def on_store(
    fn: Callable[Concatenate[Ctl, P], Awaitable[int | None]] | None = None, *, create: bool = False
) -> Callable[..., Any]:
    """Turn a coroutine function into a command that runs with an open store.

    The coroutine returns the exit code, or None for 0. Errors of jobq are printed as one line.
    With `create`, a SQLite file that does not exist is created; otherwise it is an error."""

    def wrap(fn: Callable[Concatenate[Ctl, P], Awaitable[int | None]]) -> Callable[..., None]:
        @click.pass_context
        def command(ctx: click.Context, /, *args: P.args, **kwargs: P.kwargs) -> None:
            import asyncio

            ctl = Ctl(ctx)

            async def run() -> int:
                async with ctl.backend.opened(create=create):
                    return await fn(ctl, *args, **kwargs) or 0

            ctx.exit(guarded(lambda: asyncio.run(run())))

        return update_wrapper(command, fn)

    return wrap if fn is None else wrap(fn)


def guarded(run: Callable[[], int]) -> int:
    """Run a command. Errors of jobq become one line and an exit code instead of a traceback."""
    try:
        return run()
    except (click.ClickException, BrokenPipeError):
        raise  # click handles these itself
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except (InvalidJob, WrongAddress) as e:
        fail(str(e), USAGE, e)
    except (JobqError, TimeoutError) as e:
        message = str(e) or "the store did not reply in time; use --timeout to wait longer"
        fail(message, FAILED, e)
    except OSError as e:
        fail(str(e), FAILED, e)


class _Misused(click.ClickException):
    """A one-line error with the exit code for wrong usage."""

    exit_code = USAGE


def fail(message: str, code: int = FAILED, cause: BaseException | None = None) -> NoReturn:
    """Exit with a one-line error on stderr. JQ_DEBUG=1 raises `cause`, to show its traceback."""
    if cause is not None and os.environ.get("JQ_DEBUG"):
        raise cause
    raise (_Misused if code == USAGE else click.ClickException)(safe_message(message)) from cause


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone. Without a terminal, the answer is no."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        fail("nothing was done: answer y, or use --yes")
