"""Moves queues from one store to another through the Store contract (`jq-ctl store copy`)."""

from __future__ import annotations

from jobq.operations.store_copy.queue_copy import QueueCopy, Report, preview
from jobq.operations.store_copy.side import Side

__all__ = ["QueueCopy", "Report", "Side", "preview"]
