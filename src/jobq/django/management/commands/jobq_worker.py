"""`manage.py jobq_worker`: runs the jobs of the project's queues."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from jobq.cli.worker import main
from jobq.django.config import config
from jobq.django.management.command_line import CommandLine

QUEUES = "jobq.django.discovered"
"""The module whose queues the worker works on."""


class Command(CommandLine):
    """jq-worker with the queues of this project: `manage.py jobq_worker --help`."""

    help = "Run the jobs of this project's queues until the process is asked to stop."
    program = "jobq_worker"
    main = main

    def prepare(self) -> None:
        """Run the checks of the project, as a server does, and find its queues."""
        self.check()
        import_module(QUEUES)

    def first_arguments(self) -> list[str]:
        """The module that has the queues of the project."""
        return ["--app", QUEUES]

    def defaults(self) -> Mapping[str, Any]:
        """JOBQ["WORKER"]. The command line and the environment win."""
        return config().worker
