"""`jq-ctl`, the operator's command line. Each noun has its own file and an entry in `NOUNS`."""

from __future__ import annotations

import click

from jobq.cli.options import Root
from jobq.core.version import __version__

NOUNS: dict[str, tuple[str, str]] = {
    "job": ("Submit, inspect, cancel and rerun jobs.", "jobq.cli.ctl.job"),
    "queue": (
        "Inspect queues; pause, hold, clean or remove a whole queue.",
        "jobq.cli.ctl.queue",
    ),
    "dead": ("Dead letters: jobs that failed for good.", "jobq.cli.ctl.dead"),
    "flow": ("Show, cancel and rerun jobs that wait for other jobs.", "jobq.cli.ctl.flow"),
    "schedule": ("List, create, pause, run and remove schedules.", "jobq.cli.ctl.schedule"),
    "limit": ("Show and change the limits of queues and keys.", "jobq.cli.ctl.limit"),
    "lock": ("Show who holds a unique lock, and release it.", "jobq.cli.ctl.lock"),
    "worker": (
        "List workers, and ask them to drain, resume or run more jobs.",
        "jobq.cli.ctl.workers",
    ),
    "events": ("Print events: the latest, all, or new ones as they happen.", "jobq.cli.ctl.events"),
    "store": ("Migrate a store, or move its queues to another one.", "jobq.cli.ctl.store"),
    "top": ("Show queues, rates, workers and failures live. q quits.", "jobq.cli.ctl.top"),
    "web": ("Serve the dashboard of queues, jobs, flows and workers.", "jobq.cli.ctl.web"),
    "capacity": ("Estimate the servers and workers that a load needs.", "jobq.cli.ctl.capacity"),
    "status": (
        "Show the store's queues and workers, and what needs attention.",
        "jobq.cli.ctl.system",
    ),
    "version": ("Print the versions of jobq, Python and the platform.", "jobq.cli.ctl.system"),
}
"""The short help of each command, which a test compares with it, and its module."""

main = Root(
    "jq-ctl",
    nouns=NOUNS,
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
