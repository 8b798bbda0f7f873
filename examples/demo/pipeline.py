"""The second half of the demo: the events of its jobs on Spark, with an audit and a report.

It needs Java, and Spark in the same environment. `make demo` installs Spark when the first half is
over; `DEMO_PIPELINE=no make demo` leaves this half out.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from screen import say
from shop import FOLDER, URL

LOG = FOLDER / "pipeline.log"


def run() -> bool:
    """Run the pipeline over the demo's events. Returns False and keeps the log if a step fails."""
    if os.environ.get("DEMO_PIPELINE") == "no":
        return True
    if shutil.which("java") is None:
        say("no Java here, so the Spark half is left out: install Java 17 or newer to see it")
        return True
    if not _installed() and not _install():
        return True
    return _ingest()


def _installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyarrow"))


def _install() -> bool:
    """Let make install Spark. Without make, say how to."""
    command = shlex.split(os.environ.get("DEMO_INSTALL_SPARK", ""))
    if not command:
        say("Spark is not installed, so its half is left out: pip install 'jobq[spark]'")
        return False
    if subprocess.run(command).returncode != 0:
        say("Spark could not be installed (see above), so its half is left out", "yellow")
        return False
    return True


def _ingest() -> bool:
    page = Path("out", "demo-report.html").absolute()
    say("the same events on Spark: into a lake, audited against the store, and a report")
    command = [sys.executable, "-m", "jobq.pipeline", "run", "--once"]
    command += ["--source", URL, "--lake", str(FOLDER / "lake")]
    command += ["--audit", "--report", str(page), "--conf", "spark.driver.memory=1g"]
    with open(LOG, "wb") as log:
        code = subprocess.run(command, stderr=log).returncode
    if code != 0:
        say(f"jq-pipeline failed with exit code {code}; its log is {LOG}", "bold red")
    return code == 0
