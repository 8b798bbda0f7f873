"""Texts that cannot drive a terminal or forge a line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.values.printable import is_harmless, json_text, lines, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Grüße, 東京\u3000駅", "Grüße, 東京\u3000駅"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x1b[2J\x9b2J\x7f", r"\x1b[2J\x9b2J\x7f"),
        ("\u202eexe.txt\u2028", r"\u202eexe.txt\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_a_line_has_no_control_characters(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_lines_keep_their_breaks_and_tabs() -> None:
    assert lines("a\n\tb\x1b[0m\r\x85") == "a\n\tb\\x1b[0m\\r\\x85"
    assert not is_harmless("a\x85")
    assert is_harmless("a\n\tb")


@given(st.text())
def test_no_text_escapes(text: str) -> None:
    assert "\n" not in one_line(text)
    assert is_harmless(lines(text))
    one_line(text).encode("utf-8")  # it can always be written


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_means_the_same_and_has_no_control_characters(text: str) -> None:
    encoded = json_text(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(encoded) == {"text": text}
    assert is_harmless(encoded)
