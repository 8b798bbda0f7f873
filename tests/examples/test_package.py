"""examples/shop, an application of several modules, under a real worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jobq import Queue

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_worker_runs_the_queues_of_a_package(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    payments, mails = Queue("payments", url), Queue("mails", url)
    charge = payments.task_by_name("charge").sync.enqueue(7)
    receipt = mails.task_by_name("receipt").sync.enqueue(7)
    options = ["--queues", "payments=3,mails", "--lifespan", "shop.app:lifespan"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "jobq.cli.worker", "--app", "shop", *options],
        cwd=EXAMPLES,
        env={**os.environ, "JQ_URL": url},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert charge.result(timeout=60) == "invoice 7 is charged"
        assert receipt.result(timeout=60) == "receipt 7 is sent"
        worker.terminate()
        output, _ = worker.communicate(timeout=30)
        assert worker.returncode == 0, output
    finally:
        worker.kill()
        worker.communicate()
        payments.sync.close()
        mails.sync.close()
