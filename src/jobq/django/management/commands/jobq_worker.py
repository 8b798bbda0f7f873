"""`manage.py jobq_worker`: runs the jobs of the project's queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobq.cli.worker import main
from jobq.django.config import config
from jobq.django.management.command_line import CommandLine


class Command(CommandLine):
    """jq-worker with the queues of this project: `manage.py jobq_worker --help`."""

    help = "Run the jobs of this project's queues until the process is asked to stop."
    program = "jobq_worker"
    main = main

    def run_from_argv(self, argv: Sequence[str]) -> None:
        """Called by manage.py. The checks of the project run first, as for a server."""
        self.check()
        super().run_from_argv(argv)

    def first_arguments(self) -> list[str]:
        """The module that has the queues of the project."""
        return ["--app", "jobq.django.discovered"]

    def defaults(self) -> Mapping[str, Any]:
        """JOBQ["WORKER"]. The command line and the environment win."""
        return config().worker
