"""Tasks that are programs: `queue.command("thumbnail", ["./thumb", "--size", "{size}"])`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jobq.api.context import Definition, QueueContext
from jobq.api.options import TaskOptions
from jobq.api.task import Task, publish
from jobq.api.task_handler import TaskHandler
from jobq.core.records.jobs import Lease
from jobq.core.rules.calls import ArgumentDecoder
from jobq.core.values.checks import check_task_name, shown
from jobq.core.values.codec import Codec
from jobq.errors import ConfigError, InvalidJob, UnfitArguments
from jobq.executors.handlers import ProgramCall

ANY_COMMAND = "jobq.command"
"""The task of jobs that bring their own command line. A worker has to allow the program."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class CommandHandler(TaskHandler):
    """What the engine runs for a command: fits `executors.command.Command`."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        decoder: ArgumentDecoder,
        codec: Codec,
        options: Mapping[str, Any],
        command: Sequence[str],
        env: Sequence[str],
    ) -> None:
        super().__init__(name, fn, decoder, codec, {**options, "executor": "command"})
        self.programs: tuple[str, ...] = tuple(command[:1])
        self.env = tuple(env)
        self._command = tuple(command)

    def call(self, lease: Lease) -> ProgramCall:
        """The command line of a job, and its arguments as a JSON object."""
        args, kwargs = self.bind(lease)
        given = inspect.signature(self.fn).bind(*args, **kwargs).arguments
        named = {**{k: v for k, v in given.items() if k != "more"}, **given.get("more", {})}
        line = [_filled(part, named, self.name) for part in self._command]
        return ProgramCall(line, msgspec.json.encode(named))


class AnyCommandHandler(CommandHandler):
    """Runs the command line that a job brings, if its program is allowed."""

    def __init__(self, codec: Codec, allowed: Sequence[str]) -> None:
        fn = _function(ANY_COMMAND, ("argv",), optional=("stdin",))
        super().__init__(ANY_COMMAND, fn, ArgumentDecoder(fn, ANY_COMMAND), codec, {}, [], [])
        self.programs = tuple(allowed)

    def call(self, lease: Lease) -> ProgramCall:
        """The command line of a job, and its `stdin` as JSON."""
        args, kwargs = self.bind(lease)
        given = {**dict(zip(("argv", "stdin"), args, strict=False)), **kwargs}
        if len(args) > 2 or given.keys() - {"argv", "stdin"}:
            raise UnfitArguments(
                f"a job of {self.name} has the arguments argv and stdin, and no others"
            )
        line = given.get("argv")
        if (
            not isinstance(line, list)
            or not line
            or not all(isinstance(part, str) and "\0" not in part for part in line)
        ):
            raise UnfitArguments(f"argv={shown(line)} of {self.name} is not a list of strings")
        if line[0] not in self.programs:
            raise InvalidJob(
                f"this worker does not allow the program {line[0]!r}: start it with "
                f"--allow-command {line[0]}"
            )
        return ProgramCall(line, msgspec.json.encode(given.get("stdin")))


def make_command(
    context: QueueContext,
    name: str,
    command: Sequence[str],
    env: Sequence[str],
    options: TaskOptions,
) -> Task[..., Any]:
    """Make a task of a command line and register it with the queue."""
    check_task_name(name, error=ConfigError)
    names = _placeholders(name, command)
    if isinstance(env, str) or not all(isinstance(variable, str) for variable in env):
        raise ConfigError(f"command {name}: env={shown(env)} is not a list of names")
    if options.get("executor", "command") != "command":
        raise ConfigError(f"command {name}: its executor is 'command'; leave executor out")

    def handler(name: str, codec: Codec, options: Mapping[str, Any]) -> CommandHandler:
        return CommandHandler(name, fn, ArgumentDecoder(fn, name), codec, options, command, env)

    fn = _function(name, names)
    return publish(context, fn, options, Task, Definition, handler)


def allow_commands(context: QueueContext, allowed: Sequence[str]) -> None:
    """Let jobs of the queue bring their own command line for these programs."""
    handler = AnyCommandHandler(context.codec, allowed)
    handler.max_payload = context.max_payload
    context.register(handler)


def _function(name: str, names: Sequence[str], optional: Sequence[str] = ()) -> Callable[..., Any]:
    """A function with the parameters of a command, for checks of arguments. It is never called."""

    def run(**more: Any) -> Any:
        raise ConfigError(f"{name} is a program: a worker runs it, and it cannot be called here")

    kind = inspect.Parameter
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(kind(each, kind.POSITIONAL_OR_KEYWORD) for each in names),
            *(kind(each, kind.POSITIONAL_OR_KEYWORD, default=None) for each in optional),
            kind("more", kind.VAR_KEYWORD),
        ]
    )
    run.__name__ = run.__qualname__ = name
    return run


def _placeholders(name: str, command: Sequence[str]) -> list[str]:
    """The names of the placeholders, in order. ConfigError if the command line is not valid."""
    if isinstance(command, str) or not all(isinstance(part, str) for part in command):
        raise ConfigError(
            f"command {name}: {shown(command)} is not a list of arguments. There is no shell: "
            'write ["./thumb", "--size", "{size}"]'
        )
    if not command or not command[0] or _PLACEHOLDER.search(command[0]):
        raise ConfigError(f"command {name}: the first argument names the program")
    found: list[str] = []
    for part in command:
        if "\0" in part:
            raise ConfigError(f"command {name}: {shown(part)} contains a NUL character")
        whole = _PLACEHOLDER.fullmatch(part)
        if whole is None and _PLACEHOLDER.search(part):
            raise ConfigError(
                f"command {name}: {part!r} has a placeholder inside an argument. A placeholder is "
                'a whole argument, as in "--size", "{size}"'
            )
        if whole is not None and whole[1] == "more":
            raise ConfigError(f"command {name}: a placeholder cannot be named more")
        if whole is not None and whole[1] not in found:
            found.append(whole[1])
    return found


def _filled(part: str, named: Mapping[str, Any], task: str) -> str:
    whole = _PLACEHOLDER.fullmatch(part)
    if whole is None:
        return part
    value = named[whole[1]]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UnfitArguments(
            f"argument {whole[1]} of {task}: {shown(value)} is neither text nor a number, so it "
            "cannot be part of a command line"
        )
    text = str(value)
    if "\0" in text:
        raise UnfitArguments(f"argument {whole[1]} of {task}: {shown(value)} has a NUL character")
    return text
