"""The command lines: `jq-ctl` (ctl.py, one file per noun) and `jq-worker` (worker.py)."""
