"""The command lines: `jq-ctl` (ctl/, one file per noun), `jq-worker` (worker.py) and `jq-server`
(server.py)."""
