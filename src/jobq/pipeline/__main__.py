"""`python -m jobq.pipeline` is jq-pipeline; spark-submit takes this file."""

from jobq.pipeline.cli import main

main(prog_name="jq-pipeline")
