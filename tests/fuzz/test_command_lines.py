"""Fuzzed command lines of jq-ctl, run in this process.

Each ends with an exit code and a sentence, never with a traceback. Commands and options come from
the command tree, so a new command is fuzzed without being listed here.
`make fuzz` runs 10,000 (JQ_FUZZ_LINES).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import click
from click.testing import CliRunner

from jobq.cli.ctl import main
from tests.cli.kit import commands_of

LINES = int(os.environ.get("JQ_FUZZ_LINES", "400"))
SEED = int(os.environ.get("JQ_FUZZ_SEED", "1"))
FOLLOWING = {"--follow", "-f", "--watch", "-w"}
"""Options that make a command go on until somebody stops it."""
ENDLESS = {("queue", "watch"), ("events", "follow"), ("events", "tail"), ("top",), ("web",)}

WORDS = (
    "",
    "a",
    "work",
    "0",
    "1",
    "-1",
    "5",
    "1e308",
    "nan",
    "inf",
    "9" * 400,
    "1h",
    "30s",
    "-5m",
    "2030-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "{}",
    "[]",
    "[[],{}]",
    '{"n": 1}',
    "{",
    "null",
    "[" * 2000,
    "\x01",  # no program can be given a NUL
    "a\nb",
    "\x1b[2J",
    "\x9b31m",
    "ünïcödé",
    "日本",
    "*",
    "%",
    "a=b",
    "=",
    "a,b",
    "../x",
    "* * * * *",
    "61 * * * *",
    "failed",
    "waiting",
    "json",
    "yaml",
    "table",
    "10/m",
    "1/0s",
    "5:1",
    "--",
    "-",
    "--nope",
    "x" * 300,
    "{tag}",
    "a:b",
)


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that name it."""
    if isinstance(command, click.Group):
        for name, part in commands_of(command):
            yield from commands(part, (*path, name))
    else:
        yield path, command


def line(random: Random, path: tuple[str, ...], command: click.Command) -> list[str]:
    """A line for this command with some valid options and arguments, and some invalid ones."""
    words = list(path)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            words += [random.choice(WORDS) for _ in range(random.choice((1, 1, 1, 0, 2)))]
        elif (
            isinstance(parameter, click.Option)
            and random.random() < 0.3
            and not FOLLOWING & set(parameter.opts)
        ):
            words.append(random.choice(parameter.opts))
            if not parameter.is_flag and not parameter.count:
                words.append(random.choice(WORDS))
    if random.random() < 0.05:
        words.insert(random.randrange(len(words) + 1), random.choice(WORDS))
    if random.random() < 0.2:
        words += ["-o", random.choice(("json", "yaml", "table"))]
    return words


def test_a_fuzzed_command_line_ends_with_an_exit_code_and_no_traceback(tmp_path: Path) -> None:
    random = Random(SEED)
    known = [(path, command) for path, command in commands(main) if path not in ENDLESS]
    url = f"sqlite:///{tmp_path}/jobs.db"
    runner = CliRunner()
    runner.invoke(main, ["--url", url, "job", "submit", "work", "-q", "work", "--id", "a"])
    for n in range(LINES):
        path, command = random.choice(known)
        words = line(random, path, command)
        result = runner.invoke(main, ["--url", url, *words], input="")
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            n,
            words,
            result.exc_info,
        )
        assert result.exit_code in (0, 1, 2), (n, words, result.output)
        assert "Traceback" not in result.output, (n, words)
        assert result.exit_code == 0 or result.output.strip(), (n, words, "said nothing")
