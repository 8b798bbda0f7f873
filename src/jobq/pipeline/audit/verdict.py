"""What an audit found, about each queue and as JSON, and telling others about it.

- `proved`: every number of its log is in the lake, up to the end that the audit names, and every
  event follows from the one before. Every accepted job has ended once or is still held. Numbers
  that the store's log dropped unread are named as an exception.
- `violated`: an event that was shipped is missing, two events have one number, a job breaks the
  rules, or the store holds a job that contradicts the lake.
- `unprovable`: nothing is wrong, but something could be: the lake is behind the store, records are
  in quarantine, or events have no numbers.

Nothing here reads: `jobq.pipeline.audit.audit` reads the lake and the store.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from jobq.pipeline.audit import number_sets
from jobq.pipeline.audit.proof import MAX_RANGES, Gap, LogProof, QueueTotals
from jobq.pipeline.audit.store import Contradiction, StoreView
from jobq.pipeline.transforms.conservation import HELD

Verdict = Literal["proved", "violated", "unprovable"]


class QueueAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one queue."""

    totals: QueueTotals
    logs: tuple[LogProof, ...] = ()
    quarantined: int = 0
    store: StoreView | None = None  # after the lake was read
    ends: tuple[tuple[str, int, int], ...] = ()  # log, shard, number: where the audit must get to
    compared: int = 0  # jobs compared with the store
    contradictions: tuple[Contradiction, ...] = ()  # the first ones
    contradicted: int = 0
    disputed: tuple[str, ...] = ()  # what earlier audits found unlike the store

    @property
    def tenant(self) -> str:
        """The tenant."""
        return self.totals.tenant

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.totals.queue

    @property
    def held(self) -> int:
        """Jobs that have not ended."""
        return sum(self.totals.states.get(state, 0) for state in HELD)

    @property
    def missing(self) -> int:
        """Lives started, minus lives ended and held. 0 if the counts balance."""
        t = self.totals
        ended = t.completed + t.failed + t.cancelled
        return t.accepted + t.rerun + t.carried - ended - self.held

    @property
    def gaps(self) -> list[Gap]:
        """The numbers that the store's log dropped unread, or that retention removed."""
        return [gap for log in self.logs for gap in log.gaps]

    @property
    def quiet(self) -> bool:
        """Whether the lake has everything that the store's log had after the lake was read.

        With gaps, it never has."""
        proved = {(log.log, log.shard): log.proved for log in self.logs}
        return (
            self.store is not None
            and not self.gaps
            and all(proved.get((end.log, end.shard), 0) == end.number for end in self.store.ends)
        )

    @property
    def behind(self) -> int:
        """Events that the store's log had when the audit began, and that are not in the lake."""
        proved = {(log.log, log.shard): log.proved for log in self.logs}
        return sum(max(0, number - proved.get((log, shard), 0)) for log, shard, number in self.ends)

    @property
    def differs(self) -> dict[str, tuple[int, int]]:
        """States whose number of jobs differs: state → (in the lake, in the store).

        Only in a quiet queue. The store removes records of ended jobs."""
        if self.store is None or not self.quiet:
            return {}
        here, there = self.totals.states, self.store.counts
        pairs = {s: (here.get(s, 0), there.get(s, 0)) for s in {*here, *there}}
        return {
            state: pair
            for state, pair in sorted(pairs.items())
            if (pair[0] != pair[1] if state in HELD else pair[0] < pair[1])
        }

    @property
    def problems(self) -> list[str]:
        """What violates the rules, the worst first."""
        found = []
        for log in self.logs:
            where = _shard(log, self.logs)
            if log.lost:
                most = "up to " if len(log.lost) >= MAX_RANGES else ""
                found.append(
                    f"{most}{number_sets.size(log.lost):,} × lost: "
                    f"{number_sets.text(log.lost)}{where}"
                )
            if log.twice:
                found.append(f"{log.twice:,} × number of two events{where}")
            if log.altered:
                found.append(f"events changed after they were checked{where}")
        found += [f"{n:,} × {fault}" for fault, n in self.totals.faults.items() if n]
        if self.missing and not (self.gaps or any(log.erased for log in self.logs)):
            found.append(
                f"{self.missing:,} lives neither ended nor held"
                if self.missing > 0
                else f"{-self.missing:,} more lives ended than started"
            )
        return found + self.disputes

    @property
    def disputes(self) -> list[str]:
        """Where the store disagrees, now or in an earlier audit that this one continues."""
        found = []
        for log in self.logs:
            end = self._end(log)
            if end is not None and end < log.last:
                found.append(
                    f"the store's log ends at {end:,}, but the lake has {log.last:,}"
                    f"{_shard(log, self.logs)}"
                )
        found += [
            f"{state}: {lake:,} in the lake, {store:,} in the store"
            for state, (lake, store) in self.differs.items()
        ]
        if self.contradicted:
            first = self.contradictions[0]
            found.append(f"{self.contradicted:,} × unlike the store: {first.job}: {first.fault}")
        about = {problem.split(":")[0] for problem in found}  # a state, of which counts change
        return [*found, *(one for one in self.disputed if one.split(":")[0] not in about)]

    def _end(self, log: LogProof) -> int | None:
        ends = () if self.store is None else self.store.ends
        return next((e.number for e in ends if (e.log, e.shard) == (log.log, log.shard)), None)

    @property
    def doubts(self) -> list[str]:
        """Why nothing more can be proved now."""
        found = []
        if self.quarantined:
            found.append(f"{self.quarantined:,} records in quarantine")
        if self.totals.unnumbered:
            found.append(f"{self.totals.unnumbered:,} events of jobq 0.1, which have no numbers")
        for log in self.logs:
            where = _shard(log, self.logs)
            if log.waiting and not log.shipped:
                found.append(
                    f"missing: {number_sets.text(log.waiting)}{where}; without marks of a relay, "
                    "these may be late or lost"
                )
            if log.refilled:
                found.append(
                    f"{log.refilled:,} events arrived after they were reported as lost{where}: "
                    "audit with --full"
                )
        if self.behind:
            found.append(
                f"the lake is {self.behind:,} events behind the store: run the pipeline and audit "
                "again"
            )
        if not self.logs and not self.behind:
            found.append("no event has reached the lake")
        return found

    @property
    def exceptions(self) -> list[str]:
        """What the proof leaves out, and how far it goes."""
        found = [
            f"except {number_sets.text([(gap.first, gap.last)])}{_shard(log, self.logs)}, "
            + (gap.why if gap.at_ms is None else f"dropped unread on {_utc(gap.at_ms)}")
            for log in self.logs
            for gap in log.gaps[:3]
        ]
        if more := sum(max(0, len(log.gaps) - 3) for log in self.logs):
            found.append(f"and {more:,} more gaps")
        found += [
            f"not here yet: {number_sets.text(log.waiting)}{_shard(log, self.logs)}"
            for log in self.logs
            if log.waiting and log.shipped
        ]
        return found

    @property
    def reach(self) -> str:
        """Up to where the queue was audited."""
        to = "the store's end" if self.store is not None and not self.behind else "the lake's end"
        numbers = sorted({log.proved for log in self.logs}) or [0]
        return f"up to {numbers[-1]:,}, {to}" if len(self.logs) == 1 else f"up to {to}"

    @property
    def verdict(self) -> Verdict:
        """See the module."""
        return "violated" if self.problems else "unprovable" if self.doubts else "proved"


def _shard(log: LogProof, logs: Sequence[LogProof]) -> str:
    return "" if len(logs) == 1 else f" in shard {log.shard} of log {log.log}"


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of all queues."""

    queues: tuple[QueueAudit, ...]
    full: bool = True  # whether everything was read
    at_ms: int = 0
    events: int = 0  # events that were read
    stray: int = 0  # records in quarantine that name no queue
    previous: str | None = None  # the verdict of the audit before

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all queues. Without queues: `unprovable`."""
        verdicts = {queue.verdict for queue in self.queues} or {"unprovable"}
        if "violated" in verdicts:
            return "violated"
        return "unprovable" if "unprovable" in verdicts or self.stray else "proved"

    @property
    def exit_code(self) -> int:
        """0 proved, 1 violated, 2 unprovable."""
        return {"proved": 0, "violated": 1, "unprovable": 2}[self.verdict]

    def summary(self) -> dict[str, Any]:
        """The audit as JSON, for `--output json`, alerts and the report."""
        return {
            "verdict": self.verdict,
            "previous": self.previous,
            "at_ms": self.at_ms,
            "read": "everything" if self.full else "what arrived since the last audit",
            "events": self.events,
            "quarantined_without_queue": self.stray,
            "queues": [
                {
                    "tenant": queue.tenant,
                    "queue": queue.queue,
                    "verdict": queue.verdict,
                    "problems": queue.problems,
                    "doubts": queue.doubts,
                    "exceptions": queue.exceptions,
                    "reach": queue.reach,
                    "behind": queue.behind,
                    "quarantined": queue.quarantined,
                    "compared_with_store": queue.compared,
                    "held": queue.held,
                    "lost": number_sets.size([span for log in queue.logs for span in log.lost]),
                    **{
                        name: value
                        for name, value in msgspec.to_builtins(queue.totals).items()
                        if name not in ("tenant", "queue")
                    },
                    "logs": [
                        {
                            "log": log.log,
                            "shard": log.shard,
                            "proved": log.proved,
                            "last": log.last,
                            "shipped": log.shipped,
                            "lost": log.lost,
                        }
                        for log in queue.logs
                    ],
                }
                for queue in self.queues
            ],
        }


# Tell others about an audit: a POST when the verdict changes, and metrics for Prometheus.

_TRIES = 3
_TIMEOUT_S = 10.0  # seconds per try: a receiver that takes longer is down
_PAUSE_S = 2.0  # seconds between tries
VERDICTS = ("proved", "violated", "unprovable")


def post(
    url: str, summary: Mapping[str, Any], *, pause: Callable[[float], None] = time.sleep
) -> str | None:
    """POST a summary as JSON. Returns None, or why it could not be delivered; never raises.

    Tries three times. A reply of 4xx is not tried again."""
    try:
        request = urllib.request.Request(
            url,
            data=msgspec.json.encode(summary),
            headers={"Content-Type": "application/json", "User-Agent": "jq-pipeline"},
            method="POST",
        )
        if request.type not in ("http", "https"):
            return f"{url} is not an http:// or https:// URL"
    except ValueError as e:
        return str(e)
    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            pause(_PAUSE_S)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                return None
        except urllib.error.HTTPError as e:
            problem = f"HTTP {e.code} {e.reason}"
            if e.code < 500:
                break
        except (OSError, ValueError) as e:
            problem = str(getattr(e, "reason", e))
    return problem


def prometheus(note: Mapping[str, Any]) -> str:
    """The note about an audit (LAKE/_jobq/audit.json) in Prometheus' text format.

    The names are those of `jq-pipeline run --metrics-port`."""
    lines = [
        "# HELP jobq_pipeline_audit_verdict 1 for the verdict of the last audit, 0 for the others.",
        "# TYPE jobq_pipeline_audit_verdict gauge",
        *(
            f'jobq_pipeline_audit_verdict{{verdict="{v}"}} {int(note["verdict"] == v)}'
            for v in VERDICTS
        ),
        "# HELP jobq_pipeline_audit_timestamp_seconds When the lake was last audited.",
        "# TYPE jobq_pipeline_audit_timestamp_seconds gauge",
        f"jobq_pipeline_audit_timestamp_seconds {note['at_ms'] / 1000:.3f}",
    ]
    return "\n".join(lines) + "\n"
