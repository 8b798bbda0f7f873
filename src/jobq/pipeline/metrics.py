"""What `jq-pipeline run` tells Prometheus. Needs `jobq[prometheus]`.

`jq-pipeline run --metrics-port 9102` serves /metrics and /healthz. Nothing here reads the source or
the lake: the run reports its batches, so a scrape costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client import Counter as _Counter
from prometheus_client import Gauge as _Gauge
from prometheus_client import Histogram as _Histogram

from jobq.console.probes import Answer, Route, answer
from jobq.pipeline.lake import Lake, Totals

Verdict = Literal["proved", "violated", "unprovable"]

BUCKETS = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
"""Seconds. A small batch takes about a second, the first one of a large topic many minutes."""

_COUNTED = {
    "events": "New events that were stored.",
    "duplicates": "Events that the lake already had.",
    "late": "Events that were more than 10 minutes behind the latest one when they arrived.",
    "quarantined": "Records that were no valid events.",
}


class RunMetrics:
    """The metrics of one run, in a registry of their own. `now` is the clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        registry = self.registry = CollectorRegistry()
        self._now, self._latest_ms = now, 0
        self._counts = {
            name: _Counter(f"jobq_pipeline_{name}_total", doc, registry=registry)
            for name, doc in _COUNTED.items()
        }
        self._batch = _Histogram(
            "jobq_pipeline_batch_seconds",
            "How long batches took.",
            registry=registry,
            buckets=BUCKETS,
        )
        self._derive = _Histogram(
            "jobq_pipeline_derive_seconds",
            "How long updates of the derived tables took.",
            registry=registry,
            buckets=BUCKETS,
        )
        self._lag = _Gauge(
            "jobq_pipeline_lag_seconds",
            "Age of the latest event in the last batch with events, when the batch was stored.",
            registry=registry,
        )
        freshness = _Gauge(
            "jobq_pipeline_freshness_seconds",
            "Age of the latest event in the lake. It also grows while nothing happens.",
            registry=registry,
        )
        freshness.set_function(self._freshness)
        self._last = _Gauge(
            "jobq_pipeline_last_batch_timestamp_seconds",
            "When the last batch was stored; 0 before the first one.",
            registry=registry,
        )
        self._stale = _Gauge(
            "jobq_pipeline_stale_hours",
            "Hours whose derived tables are out of date.",
            registry=registry,
        )
        self._verdict = _Gauge(
            "jobq_pipeline_audit_verdict",
            "1 for the verdict of the last audit of this lake, 0 for the others.",
            ("verdict",),
            registry=registry,
        )
        self._audited = _Gauge(
            "jobq_pipeline_audit_timestamp_seconds",
            "When this lake was last audited; 0 if it was not.",
            registry=registry,
        )

    def started(self, lake: Lake) -> None:
        """Report the state of the lake before the first batch."""
        self._state(lake)

    def batch(self, lake: Lake, totals: Totals, seconds: float) -> None:
        """Report a stored batch."""
        for name, counter in self._counts.items():
            counter.inc(getattr(totals, name))
        self._batch.observe(seconds)
        self._last.set(self._now())
        self._state(lake)
        if totals.events:
            self._lag.set(self._freshness())

    def derived(self, lake: Lake, seconds: float) -> None:
        """Report an update of the derived tables."""
        self._derive.observe(seconds)
        self._state(lake)

    def audited(self, verdict: Verdict, at_s: float) -> None:
        """Report the verdict of an audit that ended at this time."""
        for name in get_args(Verdict):
            self._verdict.labels(name).set(name == verdict)
        self._audited.set(at_s)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _freshness(self) -> float:
        return max(self._now() - self._latest_ms / 1000, 0.0) if self._latest_ms else 0.0

    def _state(self, lake: Lake) -> None:
        self._latest_ms = lake.state.max_at_ms
        self._stale.set(len(lake.state.dirty))
        # The audit is another command: it leaves its verdict in the lake.
        if (text := lake.files.read(f"{lake.root}/_jobq/audit.json")) is not None:
            note: dict[str, Any] = msgspec.json.decode(text)
            if note.get("verdict") in get_args(Verdict):
                self.audited(note["verdict"], note.get("at_ms", 0) / 1000)


def routes(metrics: RunMetrics, alive: Callable[[], bool]) -> dict[str, Route]:
    """The routes of --metrics-port. /healthz fails once the stream has ended."""
    return {
        "/metrics": lambda: Answer(200, metrics.render(), CONTENT_TYPE_LATEST),
        "/healthz": lambda: answer(None if alive() else "the stream has ended"),
    }
