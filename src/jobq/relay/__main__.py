"""`python -m jobq.relay` is jq-relay."""

from jobq.relay.cli import main

main(prog_name="jq-relay")
