"""`jq-ctl`, the operator's command line. Each noun has its own file and an entry in `NOUNS`."""

from __future__ import annotations

import click

from jobq.cli import queue_removal as _queue_removal  # noqa: F401 - adds commands to `queue`
from jobq.cli import readers as _readers  # noqa: F401 - adds commands to `queue`
from jobq.cli.capacity import capacity
from jobq.cli.dead import dead
from jobq.cli.events import events
from jobq.cli.flow import flow
from jobq.cli.job import job
from jobq.cli.limit import limit
from jobq.cli.lock import lock
from jobq.cli.options import Root
from jobq.cli.queue import queue
from jobq.cli.schedule import schedule
from jobq.cli.store import store
from jobq.cli.system import status, version
from jobq.cli.top import top
from jobq.cli.web import web
from jobq.cli.workers import worker
from jobq.core.version import __version__

NOUNS: tuple[click.Command, ...] = (
    job,
    queue,
    dead,
    flow,
    schedule,
    limit,
    lock,
    worker,
    events,
    store,
    top,
    web,
    capacity,
    status,
    version,
)

main = Root(
    "jq-ctl",
    help="""Inspect and operate a jobq store: its jobs, queues, schedules and workers.

    Set the store with --url, or the jq-server with --server-addr. Without either option, jq-ctl
    uses the server in JQ_SERVER_ADDR, else the store in JQ_URL, else the file jobq.db in the
    current directory. An option overrides both variables.

    Output is a table; -o json or -o yaml prints the complete document for scripts. Exit codes:
    0 success, 1 failed or not found, 2 wrong usage.""",
    examples="""
    jq-ctl --url sqlite:///jobs.db status
    jq-ctl --server-addr queue.internal:50051 status
    export JQ_URL=valkey://localhost:6379
    jq-ctl job submit charge -q billing --payload '{"tenant": "acme", "invoice": 7}'
    jq-ctl queue watch
    jq-ctl dead list --by-error
    """,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

main = click.version_option(__version__, prog_name="jq-ctl")(main)

for _noun in NOUNS:
    main.add_command(_noun)

if __name__ == "__main__":
    main()
