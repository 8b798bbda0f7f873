"""The table of a run."""

from __future__ import annotations

from collections import Counter

from tests.faults.ledger.judge import percentile
from tests.faults.ledger.plan import KINDS
from tests.faults.ledger.run import Result


def table(result: Result) -> str:
    """What was done, what was found, and why it is good or not."""
    verdict, settings = result.verdict, result.settings
    kinds = Counter(fault.kind for fault in result.faults)
    waits = verdict.recovery_ms
    recovery = " / ".join(
        f"{value / 1000:.1f}"
        for value in (
            percentile(waits, 0.5), percentile(waits, 0.99), max(waits, default=0),
        )
    )  # fmt: skip
    rows: list[tuple[str, str]] = [
        ("store", f"{settings.store}, durability {result.durability}"),
        ("executor, seed", f"{settings.executor}, {settings.seed}"),
        ("jobs, acknowledged", f"{verdict.jobs:,}, {verdict.acknowledged:,}"),
        ("runs of handlers", f"{verdict.runs:,}"),
        ("faults", f"{len(result.faults):,}"),
        *((f"  {kind}", f"{kinds[kind]:,}") for kind in KINDS if kinds[kind]),
        ("lost", f"{verdict.lost:,}"),
    ]
    if verdict.forgotten:
        rows.append(("lost within the durability class", f"{verdict.forgotten:,}"))
    rows += [
        ("repeated runs", f"{verdict.repeats:,}"),
        ("unexplained", f"{verdict.unexplained:,}"),
        ("late reports refused", f"{verdict.late:,}"),
        ("stalls without a fault", f"{verdict.stalls_without_fault:,}"),
        ("recovery p50 / p99 / max", f"{recovery} s"),
        ("time", f"{result.seconds:,.0f} s"),
    ]
    rows += [(f"BROKEN: {rule}", f"{n:,}") for rule, n in verdict.findings.most_common()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    lines += [f"not possible here: {kind}: {why}" for kind, why in result.left_out.items()]
    lines += [str(finding) for finding in verdict.examples]
    verdict_line = "good: nothing lost, nothing unexplained" if result.good else "NOT GOOD"
    return "\n".join([*lines, verdict_line])
