"""The matrix: every two features, on every kind of queue; and which of them are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from jobq.errors import ConfigError, InvalidJob, JobqError
from tests.pairs.feature import KINDS, Feature, Kind
from tests.pairs.features import FEATURES

# Limits of a whole queue.
QUEUE_WIDE = frozenset({"limits", "rate", "cost"})


@dataclass(frozen=True)
class Scenario:
    """Features that act on one job, in this order, in a queue of this kind."""

    kind: Kind
    features: tuple[Feature, ...]

    @property
    def name(self) -> str:
        """For people, and for `pytest -k`."""
        return f"{self.kind}:{'+'.join(feature.name for feature in self.features)}"

    @property
    def refused(self) -> type[JobqError] | None:
        """The error that must refuse the scenario, by the order of checks. None: it is valid."""
        names = {feature.name for feature in self.features}
        if self.kind == "partitioned" and names & QUEUE_WIDE:
            return ConfigError  # a limit of the whole queue needs one partition
        if "schedule" in names and names & {"delay", "debounce", "flow", "flow-across"}:
            return InvalidJob  # a schedule's times say when, and its jobs wait for no others
        if "key" in names and not self.kind.endswith("keyed"):
            return ConfigError  # a job with a key in a plain queue
        return None


def pairs(kinds: Sequence[Kind] = KINDS) -> list[Scenario]:
    """Every two features. Those that act in the same phase are played in both orders."""
    found = []
    for kind in kinds:
        for first, second in combinations(FEATURES, 2):
            found.append(Scenario(kind, (first, second)))
            if first.phases() & second.phases() or (
                "unique" in first.options and "unique" in second.options
            ):
                found.append(Scenario(kind, (second, first)))
    return found
