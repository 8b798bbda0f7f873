"""Three features of a job at once: a random sample, the same in every run of CI."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jobq_conformance.test_machine import EXAMPLES
from tests.pairs.feature import KINDS, Kind
from tests.pairs.features import FEATURES
from tests.pairs.matrix import Scenario

# JQ_EXAMPLES=5000 for a long search that shrinks what it finds.
SAMPLE = settings(
    max_examples=EXAMPLES or 150,
    deadline=None,
    database=None,
    derandomize=not EXAMPLES,
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)
NAMES = {feature.name: feature for feature in FEATURES}


@SAMPLE
@given(
    kind=st.sampled_from(KINDS),
    names=st.lists(st.sampled_from(sorted(NAMES)), min_size=3, max_size=3, unique=True),
)
def test_three_features_keep_their_promises_together(
    kind: Kind, names: list[str], play: Callable[[Scenario], None]
) -> None:
    play(Scenario(kind, tuple(NAMES[name] for name in names)))
