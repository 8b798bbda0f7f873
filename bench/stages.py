"""Print the times of Spark's stages from its event log, to find idle cores and slow stages."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import click


def show_stages(log: Path, *, since: float) -> None:
    """Print a line for each stage that started after `since` (seconds since the epoch)."""
    stages, spent = {}, defaultdict[tuple[int, int], Counter[str]](Counter)
    jobs: dict[int, str | None] = {}
    for file in sorted(
        path for path in log.rglob("*") if path.is_file() and path.name.startswith("events_")
    ):
        for line in file.open():
            event = json.loads(line)
            if event["Event"] == "SparkListenerStageCompleted":
                info = event["Stage Info"]
                stages[info["Stage ID"], info["Stage Attempt ID"]] = info
            elif event["Event"] == "SparkListenerTaskEnd":
                metrics = event.get("Task Metrics") or {}
                sums = spent[event["Stage ID"], event["Stage Attempt ID"]]
                sums["run"] += metrics.get("Executor Run Time", 0)
                sums["cpu"] += metrics.get("Executor CPU Time", 0) // 1_000_000
                sums["gc"] += metrics.get("JVM GC Time", 0)
                sums["shuffled"] += metrics.get("Shuffle Write Metrics", {}).get(
                    "Shuffle Bytes Written", 0
                )
                sums["spilt"] += metrics.get("Disk Bytes Spilled", 0)
            elif event["Event"] == "SparkListenerJobStart":
                description = (event.get("Properties") or {}).get("spark.job.description")
                jobs.update(dict.fromkeys(event["Stage IDs"], description))
    started = {
        key: info["Submission Time"]
        for key, info in stages.items()
        if info["Submission Time"] >= since * 1000
    }
    first = min(started.values(), default=0)
    click.echo(
        f"{'at':>8} {'took':>7} {'tasks':>5} {'in tasks':>8} {'cpu':>7} {'gc':>5} "
        f"{'shuffle':>9} {'spill':>7}"
    )
    for key, at in sorted(started.items(), key=lambda item: item[1]):
        info, sums = stages[key], spent[key]
        took = (info["Completion Time"] - at) / 1000
        times = f"{(at - first) / 1000:8.2f} {took:7.2f} {info['Number of Tasks']:5d}"
        work = f"{sums['run'] / 1000:8.1f} {sums['cpu'] / 1000:7.1f} {sums['gc'] / 1000:5.1f}"
        data = f"{sums['shuffled'] / 1e6:6.1f} MB {sums['spilt'] / 1e6:4.0f} MB"
        what = (jobs.get(key[0]) or info["Stage Name"]).split("\n")[0][:50]
        click.echo(f"{times} {work} {data}  {what}")
