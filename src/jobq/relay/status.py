"""How the relay is doing: per queue, and all together. `lag_ms` is the number to alert on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One queue that this instance ships."""

    tenant: str
    queue: str
    position: str = "0"
    shipped: int = 0  # events since this instance started
    refused: int = 0  # events the target will never take; kept apart
    lag_ms: int = 0  # age of the oldest event not shipped yet, or right after a page of its last event; 0 when none waits
    problem: str | None = None  # why it does not go on, while it does not


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """This instance."""

    target: str
    queues: tuple[QueueStatus, ...] = ()
    others: int = 0  # queues that another instance ships
    problem: str | None = (
        None  # what the target fails at beside taking events (publishing a file, say); it is tried again
    )

    @property
    def lag_ms(self) -> int:
        """Of the queue that is furthest behind."""
        return max((queue.lag_ms for queue in self.queues), default=0)

    def prometheus(self) -> str:
        """The same for Prometheus."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        series: dict[str, tuple[str, str, Callable[[QueueStatus], float]]] = {
            "jobq_relay_lag_seconds": (
                "gauge",
                "Age of the oldest event not shipped yet.",
                lambda q: q.lag_ms / 1000,
            ),
            "jobq_relay_shipped_total": ("counter", "Events shipped.", lambda q: q.shipped),
            "jobq_relay_refused_total": (
                "counter",
                "Events the target will never take.",
                lambda q: q.refused,
            ),
            "jobq_relay_blocked": (
                "gauge",
                "1 while the target does not take this queue's events.",
                lambda q: int(q.problem is not None),
            ),
        }
        yield "# HELP jobq_relay_failing 1 while the target fails at its own chores, such as publishing a file."
        yield "# TYPE jobq_relay_failing gauge"
        yield f"jobq_relay_failing {int(self.problem is not None)}"
        for name, (kind, help, value) in series.items():
            yield f"# HELP {name} {help}"
            yield f"# TYPE {name} {kind}"
            for queue in self.queues:
                yield f'{name}{{tenant="{_label(queue.tenant)}",queue="{_label(queue.queue)}"}} {value(queue)}'


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
