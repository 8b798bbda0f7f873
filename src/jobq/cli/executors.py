"""Options of jq-worker about where handlers run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from jobq.cli.options import DURATION

_OPTIONS = (
    click.option(
        "--grace",
        type=DURATION,
        metavar="TIME",
        default="5s",
        show_default=True,
        help="How long a job may take to stop after its timeout or a cancel, before its process is "
        "killed. A task may have its own.",
    ),
    click.option(
        "--pool",
        type=click.IntRange(min=1),
        metavar="N",
        help='Child processes for tasks with executor="process". Default: one per core.',
    ),
    click.option(
        "--pool-max-jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Replace a child process after N jobs. 1: a new process for each job.",
    ),
    click.option(
        "--pool-max-memory",
        metavar="SIZE",
        help="Replace a child process that uses more memory after a job, e.g. 512M.",
    ),
    click.option(
        "--allow-command",
        metavar="PROGRAM",
        multiple=True,
        help="Allow jobs of the task jobq.command to run this program with arguments of their own. "
        "Repeat for several programs. Default: none.",
    ),
)


def executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
