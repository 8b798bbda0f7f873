"""bench.start measures processes that do what their rows say."""

from __future__ import annotations

import pytest

from bench.start import STARTS, Start, processor_ms


@pytest.mark.parametrize("name", STARTS)
def test_every_process_of_the_benchmark_starts(name: str) -> None:
    assert 0 < processor_ms(STARTS[name]) < 60_000


def test_a_process_that_fails_is_not_measured() -> None:
    with pytest.raises(SystemExit, match="exited with 3"):
        processor_ms(Start("raise SystemExit(3)"))
