"""What a worker tells the supervisor of its process."""

from __future__ import annotations

from typing import Protocol


class Supervision(Protocol):
    """Called in the worker's event loop."""

    def up(self) -> None:
        """The stores are open and the worker claims jobs."""

    def settled(self, jobs: int) -> None:
        """The outcomes of this many jobs are stored."""

    def shut_down(self) -> None:
        """An operator has asked the worker to stop."""
