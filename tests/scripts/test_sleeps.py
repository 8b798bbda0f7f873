"""The check that tests do not sleep."""

from __future__ import annotations

from pathlib import Path

from scripts import sleeps


def test_a_sleep_is_found_and_a_yield_to_other_tasks_is_not() -> None:
    source = "import asyncio, time\nasyncio.sleep(0)\nasyncio.sleep(0.1)\ntime.sleep(n)\n"
    assert list(sleeps.sleeps(source)) == [3, 4]


def test_a_sleep_is_allowed_only_where_the_list_says_so(tmp_path: Path) -> None:
    for name in ("tests/waiting.py", "tests/cli/apps/app.py", "tests/cli/test_app.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import time\ntime.sleep(1)\n")
    assert [line.split(": ")[0] for line in sleeps.check(tmp_path)] == ["tests/cli/test_app.py:2"]
