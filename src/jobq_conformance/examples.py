"""How many examples random tests try: few in every run, and always the same ones."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

LONG = int(os.environ.get("JQ_EXAMPLES", "0"))
"""JQ_EXAMPLES=1000: a long search, which shrinks what it finds."""
SHARE = float(os.environ.get("JQ_EXAMPLES_SHARE", "1"))
"""The part of the usual examples that a quick run tries."""


def number(n: int) -> int:
    """How many to try where a run of everything tries `n`."""
    return LONG or max(1, round(SHARE * n))


def examples(n: int, **more: Any) -> settings:
    """Settings for so many examples."""
    phases = [Phase.explicit, Phase.generate]
    return settings(
        max_examples=number(n),
        deadline=None,
        database=None,
        derandomize=not LONG,
        phases=[*phases, Phase.shrink] if LONG else phases,
        suppress_health_check=list(HealthCheck),
        **more,
    )
