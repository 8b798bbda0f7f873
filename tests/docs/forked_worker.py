"""jq-worker in a process that is forked from one that has imported it.

A page shows several command lines of jq-worker. Starting Python for each would cost a second.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["jobq.cli.worker", "jobq.stores.sqlite"])


def start(arguments: list[str], folder: Path, output: Path) -> ForkServerProcess:
    """Start jq-worker in a folder. What it prints goes to the file `output`."""
    environment = {**os.environ, "PWD": str(folder)}
    process = CONTEXT.Process(target=_work, args=(arguments, str(folder), environment, str(output)))
    process.start()
    return process


def _work(arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    from jobq.cli.worker import main

    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.orig_argv = [sys.executable, "-m", "jobq.cli.worker", *arguments]  # of --processes
    main(arguments)
