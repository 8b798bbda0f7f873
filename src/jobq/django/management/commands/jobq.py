"""`manage.py jobq …`: the commands of jq-ctl, on the store of settings.JOBQ."""

from __future__ import annotations

from jobq.cli.ctl import main
from jobq.django.config import config
from jobq.django.management.command_line import CommandLine
from jobq.django.queue import default_url


class Command(CommandLine):
    """The commands of jq-ctl: `manage.py jobq --help` lists them."""

    help = "Inspect and operate the jobs, queues, schedules and workers of this project."
    program = "jobq"
    main = main

    def first_arguments(self) -> list[str]:
        """The store and tenant of the settings. Options of the user come later and win."""
        given = config()
        arguments: list[str] = []
        if (url := default_url(given)) is not None:
            arguments += ["--url", url]
        if given.tenant is not None:
            arguments += ["--tenant", given.tenant]
        return arguments
