"""How the queues of a worker share its slots: in turns, by weight, or in strict order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobq.core.checks import check_bool, check_int, did_you_mean, shown
from jobq.core.records import QueueName
from jobq.core.turns import MAX_WEIGHT, by_weight, in_strict_order, in_turns
from jobq.errors import ConfigError


class QueueOrder:
    """What `Worker(strict=…, weights=…)` says."""

    def __init__(
        self, queues: Sequence[QueueName], *, strict: bool, weights: Mapping[str, int] | None
    ) -> None:
        self.strict = check_bool(strict, "strict", error=ConfigError)
        if weights is not None and not isinstance(weights, Mapping):
            raise ConfigError(f"weights={shown(weights)} is not a mapping of queue names")
        if strict and weights:
            raise ConfigError("strict=True and weights: give one of them")
        names = [queue.queue for queue in queues]
        for name, weight in (weights or {}).items():
            if name not in names:
                raise ConfigError(
                    f"weights: this worker has no queue {name!r}{did_you_mean(name, names)}"
                )
            check_int(weight, f"the weight of {name}", low=1, high=MAX_WEIGHT, error=ConfigError)
        self._weights = weights

    def orders(self, queues: Sequence[QueueName]) -> list[tuple[QueueName, ...]]:
        """The orders in which claims name these queues, one after the other."""
        if self.strict:
            return in_strict_order(queues)
        if not self._weights:
            return in_turns(queues)
        return by_weight(queues, {queue: self._weights.get(queue.queue, 1) for queue in queues})

    def check_stores(self, stores: int) -> None:
        """ConfigError if the order cannot be kept: each store is asked on its own."""
        if self.strict and stores > 1:
            raise ConfigError(
                "strict=True: the queues are in different stores, which a worker asks side by "
                "side; use queues of one store, or a worker for each"
            )
