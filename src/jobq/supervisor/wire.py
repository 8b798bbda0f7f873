"""What a supervisor and its worker processes say to each other, one word per line."""

from __future__ import annotations

from enum import StrEnum

VARIABLE = "JOBQ_SUPERVISED"
"""Environment variable of a worker process: `descriptor:pid of the supervisor:worker's name`.

The process removes it at once, so a jq-worker that a handler starts is not taken for supervised.
"""


class Report(StrEnum):
    """What a worker process reports."""

    UP = "up"  # its stores are open, and it claims jobs
    FULL = "full"  # it has reached --max-jobs or --max-memory, and works on until it is replaced
    SHUT_DOWN = "shut-down"  # it stops because an operator said so: do not replace it


class Order(StrEnum):
    """What the supervisor orders. An order that is repeated changes nothing."""

    DRAIN = "drain"  # finish running jobs, for --drain at most, and exit
    RELEASE = "release"  # release running jobs now, and exit
