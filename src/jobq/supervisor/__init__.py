"""Several worker processes under one supervisor: `jq-worker --processes`.

The supervisor runs no jobs and does not import the application. It starts the same command line
again once per process (never by fork alone, because the parent may have threads), and passes each
process one end of a socket pair (`process.py`). Over it the process reports that it is up, that it
wants to be replaced, or that an operator has shut it down. The supervisor sends it the order to
drain or to release. If the supervisor dies, so do its processes (`child.py`).

    supervisor.py   which processes there should be, and when one is replaced
    process.py      one worker process, seen by the supervisor
    child.py        the supervisor, seen by a worker process; when to be replaced: --max-jobs,
                    --max-memory
    changes.py      --reload: wait until a source file changes
"""
