"""The relay ships a store's event log to Kafka or files, at least once and in order per job.

    relay.py     the loop: elect, read a page, send it, acknowledge it
    targets.py   the protocol of a target, `open_target(url)`, and the file of what targets reject
    kafka.py     a Kafka topic
    files.py     rotated files of JSON lines
    status.py    lag and counts, as records and in Prometheus' text format
    cli.py       jq-relay

To run it inside another process, start `Relay(store, target).run()` as a task and read
`relay.status`.
"""

from __future__ import annotations

from jobq.relay.relay import Relay
from jobq.relay.status import QueueStatus, RelayStatus
from jobq.relay.targets import Target, open_target

__all__ = ["QueueStatus", "Relay", "RelayStatus", "Target", "open_target"]
