"""`jq-pipeline`: the pipeline's command line, one module per noun."""

from __future__ import annotations

from jobq.pipeline.cli import audit, erase, load, report, run, show, synth, upkeep
from jobq.pipeline.cli.group import main

__all__ = ["main"]

for _command in (
    run.run,
    audit.audit,
    report.report,
    show.show,
    report.tables,
    upkeep.rebuild,
    upkeep.compact,
    upkeep.retention,
    erase.erase,
    load.load,
    synth.synth,
):
    main.add_command(_command)
