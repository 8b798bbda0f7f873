"""The JSON log format: every record is one object on one line, without passwords."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from jobq.console.logs import JsonFormatter


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def logged(message: str, **attributes: Any) -> dict[str, Any]:
    record = logging.makeLogRecord(
        {"name": "app", "levelname": "WARNING", "msg": message, **attributes}
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    document: dict[str, Any] = json.loads(line)
    return document


def test_text_that_is_not_valid_unicode_is_escaped() -> None:
    assert logged("name \udce9")["message"] == "name \udce9"
    assert logged("x", file="\udce9\x9b")["file"] == "\udce9\x9b"


def test_an_error_about_a_file_name_that_is_not_valid_unicode_is_logged() -> None:
    try:
        raise ValueError("cannot read \udce9")
    except ValueError:
        error = logged("failed", exc_info=sys.exc_info())["error"]
    assert error["type"] == "ValueError"
    assert "cannot read" in error["traceback"]


@pytest.mark.parametrize("value", [Mute(), object(), {1: {("a", 2): 3}}, float("nan"), 10**400])
def test_a_value_of_any_type_leaves_the_rest_of_the_record_readable(value: object) -> None:
    assert logged("x", value=value)["message"] == "x"


def test_a_url_in_an_attribute_is_shown_without_its_password() -> None:
    assert logged("x", target="valkey://u:hunter2@h")["target"] == "valkey://u:***@h"
