"""The help of every command line explains every option, and its first sentence is never cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import click
import pytest
from click.testing import CliRunner

from jobq.cli.ctl import NOUNS
from jobq.cli.ctl import main as ctl
from jobq.cli.server import main as server
from jobq.cli.worker import main as worker
from jobq.relay.cli import main as relay
from tests.cli.kit import commands_of

ROOTS = {"jq-ctl": ctl, "jq-worker": worker, "jq-server": server, "jq-relay": relay}
if find_spec("pyspark"):
    from jobq.pipeline.cli import main as pipeline

    ROOTS["jq-pipeline"] = pipeline


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all commands below it, with the words to call each."""
    yield name, command
    if isinstance(command, click.Group):
        for word, below in commands_of(command):
            yield from commands(f"{name} {word}", below)


COMMANDS = [pair for name, root in ROOTS.items() for pair in commands(name, root)]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_option_has_help_and_says_what_its_value_is(
    name: str, command: click.Command
) -> None:
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        spelled = f"{name} {option.opts[0]}"
        assert option.help, f"{spelled} has no help"
        assert option.help.endswith((".", "…")), f"{spelled}: help is one or more sentences"
        if not option.is_flag and not isinstance(option.type, click.Choice):
            assert option.metavar, f"{spelled} has no metavar"


@pytest.mark.parametrize(
    ("name", "command"),
    [pair for pair in COMMANDS if pair[0] not in ROOTS],
    ids=[name for name, _ in COMMANDS if name not in ROOTS],
)
def test_the_first_sentence_fits_into_the_list_of_commands(
    name: str, command: click.Command
) -> None:
    """Click cuts a longer one and adds dots, in a terminal of 80 columns."""
    longest_name = 13  # forget-reader
    assert not command.get_short_help_str(limit=80 - 2 - longest_name - 2).endswith("...")


def test_the_help_of_jq_ctl_says_where_it_looks_for_jobs_and_in_which_order() -> None:
    text = " ".join(CliRunner().invoke(ctl, ["--help"]).output.partition("Options")[0].split())
    places = ["--url", "--server-addr", "JQ_SERVER_ADDR", "JQ_URL", "jobq.db"]
    found = [text.find(place) for place in places]
    assert -1 not in found
    assert found == sorted(found)


@pytest.mark.parametrize(("name", "command"), list(commands_of(ctl)), ids=list(NOUNS))
def test_jq_ctl_says_of_a_noun_what_the_noun_says(name: str, command: click.Command) -> None:
    assert NOUNS[name][0] == command.get_short_help_str(limit=200)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_no_noun_no_store_and_no_tables(arguments: list[str]) -> None:
    code = f"""if True:
        import sys
        from jobq.cli.ctl import main
        main({arguments!r}, standalone_mode=False)
        heavy = {{"asyncio", "jobq.api", "jobq.stores", "jobq.cli.ctl.job", "msgspec", "rich"}}
        heavy.add("yaml")
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_a_mistyped_noun_gets_the_right_one() -> None:
    shown = CliRunner().invoke(ctl, ["statu"]).output
    assert "Did you mean 'status'?" in shown
