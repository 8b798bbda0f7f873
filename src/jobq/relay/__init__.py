"""The relay: ships the store's event log to Kafka or to files, at least once and in order per job.

    relay.py     the loop: which queues are ours, one page after the other, position stored after delivery
    targets.py   what a target is, and `open_target(url)`
    kafka.py     a topic      files.py   rotated JSON lines
    rejected.py  events that a target will never take: kept in a file, never dropped
    status.py    lag and counts, as records and as Prometheus text
    cli.py       jq-relay

A server embeds it: `relay = Relay(store, target); task = asyncio.create_task(relay.run())`, `relay.status`.
"""

from __future__ import annotations

from jobq.relay.relay import Relay
from jobq.relay.status import QueueStatus, RelayStatus
from jobq.relay.targets import Target, open_target

__all__ = ["QueueStatus", "Relay", "RelayStatus", "Target", "open_target"]
