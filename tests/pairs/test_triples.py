"""Three features of a job at once: a random sample, the same in every run of CI."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from jobq_conformance.examples import examples
from tests.pairs.feature import KINDS, Kind
from tests.pairs.features import FEATURES
from tests.pairs.matrix import Scenario

NAMES = {feature.name: feature for feature in FEATURES}


@examples(150)
@given(
    kind=st.sampled_from(KINDS),
    names=st.lists(st.sampled_from(sorted(NAMES)), min_size=3, max_size=3, unique=True),
)
def test_three_features_keep_their_promises_together(
    kind: Kind, names: list[str], play: Callable[[Scenario], None]
) -> None:
    play(Scenario(kind, tuple(NAMES[name] for name in names)))
