"""What the clients and the server of jq-server share.

`v1` is generated from proto/jobq/v1 by scripts/protos.py. Nothing else here knows a store.
"""
