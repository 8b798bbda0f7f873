"""Tables in narrow terminals, and control characters in users' texts."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from jobq.cli.output import Column, SafeConsole, table
from jobq.core.values.printable import is_harmless
from tests.cli.kit import Ctl

COLUMNS = (
    Column("NAME"),
    Column("SIZE", right=True, spare=1),
    Column("HOST", spare=2),
    Column("ABOUT", shrinks=True),
)
ROW = ("n" * 20, "1", "h" * 20, "a" * 60)


def drawn(width: int, columns: tuple[Column, ...] = COLUMNS, row: tuple[str, ...] = ROW) -> str:
    page = io.StringIO()
    SafeConsole(file=page, width=width).print(table(columns, [row]))
    return page.getvalue()


def test_rows_that_fit_are_a_table() -> None:
    assert drawn(200).split() == ["NAME", "SIZE", "HOST", "ABOUT", *ROW]


def test_a_column_that_does_not_fit_is_named_below_the_table() -> None:
    text = drawn(60)
    assert text.splitlines()[0].split() == ["NAME", "SIZE", "ABOUT"]
    assert "columns that did not fit: HOST" in text
    assert "columns that did not fit: SIZE, HOST" in drawn(46)


@pytest.mark.parametrize("width", [10, 30, 40])
def test_if_mandatory_columns_do_not_fit_rows_become_lists(width: int) -> None:
    text = drawn(width)
    assert all(column.title in text for column in COLUMNS)
    assert "".join(text.split()).count("a") == 60
    assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_no_title_is_ever_missing(width: int) -> None:
    assert all(column.title in drawn(width) for column in COLUMNS)


def test_every_list_names_all_its_columns_in_80_columns(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl("job", "submit", "add", "-q", "a-queue-with-a-rather-long-name", "--id", "x" * 40)
    monkeypatch.setattr("jobq.cli.output._PIPE_WIDTH", 80)
    jobs = ctl("job", "list", "-q", "a-queue-with-a-rather-long-name").stdout
    assert all(
        title in jobs for title in ("ID", "QUEUE", "NAME", "STATE", "PRIO", "RUNS", "WHEN", "ABOUT")
    )
    assert "x" * 40 in jobs
    queues = ctl("queue", "list").stdout
    titles = (
        "QUEUE",
        "STATUS",
        "WAITING",
        "ACTIVE",
        "DELAYED",
        "BLOCKED",
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "WORKERS",
    )
    assert all(title in queues for title in titles)


# ── control characters ──

HOSTILE = "a\x1b[2J\x9b2J\x85\u2028\u202eb\x7f\x07c"


@pytest.mark.parametrize("format", ["table", "json", "yaml"])
@pytest.mark.parametrize(
    "command",
    [("job", "status", "h"), ("job", "list", "-q", "shop"), ("events", "--all", "-q", "shop")],
)
def test_control_characters_in_users_texts_do_not_reach_the_terminal(
    ctl: Ctl, format: str, command: tuple[str, ...]
) -> None:
    ctl(
        "job",
        "submit",
        "add",
        "-q",
        "shop",
        "--id",
        "h",
        "--payload",
        json.dumps([HOSTILE, {HOSTILE: HOSTILE}]),
    )
    said = ctl(*command, "-o", format).stdout
    assert is_harmless(said)


def test_escaped_documents_decode_to_what_was_stored(ctl: Ctl) -> None:
    ctl(
        "job",
        "submit",
        "add",
        "-q",
        "shop",
        "--id",
        "h",
        "--payload",
        json.dumps([HOSTILE, {HOSTILE: HOSTILE}]),
    )
    assert ctl.json("job", "status", "h")["args"] == [HOSTILE, {HOSTILE: HOSTILE}]
    assert yaml.safe_load(ctl("job", "status", "h", "-o", "yaml").stdout)["args"] == [
        HOSTILE,
        {HOSTILE: HOSTILE},
    ]


def test_control_characters_in_an_error_do_not_reach_the_terminal(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    assert is_harmless(ctl("job", "status", HOSTILE, code=1).output)
