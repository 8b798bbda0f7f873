"""The status of a relay, per queue and in total. Alert on `lag_ms`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One queue that this relay ships."""

    tenant: str
    queue: str
    position: str = "0"
    shipped: int = 0  # events since this relay started
    refused: int = 0  # events that the target rejected for good
    # Age of the oldest event that is not shipped yet, or of a page's last event right after the
    # page was shipped; 0 when nothing is left.
    lag_ms: int = 0
    problem: str | None = None  # why the queue is not being shipped right now


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One relay."""

    target: str
    queues: tuple[QueueStatus, ...] = ()
    others: int = 0  # queues that other relays ship
    problem: str | None = None  # what the target's own work fails at, e.g. publishing a file

    @property
    def lag_ms(self) -> int:
        """The lag of the queue that is furthest behind."""
        return max((queue.lag_ms for queue in self.queues), default=0)

    def prometheus(self) -> str:
        """The status in Prometheus' text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        series: dict[str, tuple[str, str, Callable[[QueueStatus], float]]] = {
            "jobq_relay_lag_seconds": (
                "gauge",
                "Age of the oldest event that is not shipped yet.",
                lambda q: q.lag_ms / 1000,
            ),
            "jobq_relay_shipped_total": ("counter", "Events shipped.", lambda q: q.shipped),
            "jobq_relay_refused_total": (
                "counter",
                "Events that the target rejected for good.",
                lambda q: q.refused,
            ),
            "jobq_relay_blocked": (
                "gauge",
                "1 while this queue's events cannot be shipped.",
                lambda q: int(q.problem is not None),
            ),
        }
        yield "# HELP jobq_relay_failing 1 while the target's own work fails (publishing a file)."
        yield "# TYPE jobq_relay_failing gauge"
        yield f"jobq_relay_failing {int(self.problem is not None)}"
        for name, (kind, help, value) in series.items():
            yield f"# HELP {name} {help}"
            yield f"# TYPE {name} {kind}"
            for queue in self.queues:
                labels = f'tenant="{_label(queue.tenant)}",queue="{_label(queue.queue)}"'
                yield f"{name}{{{labels}}} {value(queue)}"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
