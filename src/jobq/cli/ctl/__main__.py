"""`python -m jobq.cli.ctl` is jq-ctl."""

from jobq.cli.ctl import main

main(prog_name="jq-ctl")
