"""The JSON log format: every record is one object on one line, without passwords."""

from __future__ import annotations

import json
import logging
import subprocess
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


# ── everything that a process writes to stderr ────────────────────────────────────────────────────

_NOISY = """
import logging, os, sys, threading, warnings
from jobq.console import logs

logs.configure("info", "json", whole=True)

def core(n):
    for i in range(50):
        os.write(2, b"I0000 00:00:1763 core %d.%d\\n" % (n, i))
        logging.info("ours %d.%d", n, i)

threads = [threading.Thread(target=core, args=(n,)) for n in range(4)]
for each in threads: each.start()
for each in threads: each.join()
os.write(2, b'{"looks": "like JSON"}\\n\\n[1]\\n"text"\\nnull\\n')
os.write(2, b"bytes \\xff\\xfe and \\x1b[31m colours\\r\\n")
os.write(2, b"x" * 200_000 + b"\\n")
os.write(2, b"valkey://user:s3cret@host is gone\\n")
print("printed", file=sys.stderr)
warnings.warn("a warning")
threading.Thread(target=lambda: 1 / 0).start()
os.write(2, b"half a line")
raise SystemExit("the end")
"""


def test_every_line_of_stderr_is_an_object_whoever_writes_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NOISY], capture_output=True, text=True, timeout=60, check=False
    )
    lines = done.stderr.splitlines()
    found = [json.loads(line) for line in lines]
    assert all(isinstance(each, dict) and set(each) >= {"at", "level", "logger"} for each in found)
    messages = [each["message"] for each in found]
    for n in range(4):
        for i in range(50):
            assert f"I0000 00:00:1763 core {n}.{i}" in messages
            assert f"ours {n}.{i}" in messages
    assert sum(message.count("x") for message in messages if set(message) == {"x"}) == 200_000
    text = "\n".join(messages)
    for said in ('{"looks": "like JSON"}', "printed", "a warning", "ZeroDivisionError", "the end"):
        assert said in text
    assert "half a line" in text
    assert "s3cret" not in done.stderr
