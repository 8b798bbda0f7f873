"""Write a DataFrame as jobs and read jobs as a DataFrame, with format("jobq").

Needs `pip install 'jobq[spark]'` and Java."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from importlib.util import find_spec

from jobq import Queue, Worker

URL = f"sqlite:///{tempfile.mkdtemp(prefix='jobq-spark-')}/jobs.db"
mail = Queue("mail", URL)


@mail.task
async def send(order: int, to: str) -> str:
    """The handler of the job of each row."""
    return f"order {order} to {to}"


async def work() -> None:
    """Run the jobs of the queue."""
    async with Worker(mail):
        for job in [found.id async for found in mail.find()]:
            await mail.job(job).wait(timeout=30)


def main() -> None:
    """Write jobs, run them, and read their results."""
    from jobq.pipeline.datasource import register
    from jobq.pipeline.session import open_session

    spark = open_session("example", master="local[1]")
    register(spark)
    orders = spark.createDataFrame([(1, "ann"), (2, "bob"), (2, "bob")], "order int, to string")

    orders.write.format("jobq").options(url=URL, queue="mail", task="send", id="order").mode(
        "append"
    ).save()
    jobs = spark.read.format("jobq").options(url=URL, queue="mail").load()

    asyncio.run(work())
    jobs.select("id", "state", "result").orderBy("id").show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if find_spec("pyspark") is None or shutil.which("java") is None:
        sys.exit("this example needs pip install 'jobq[spark]' and Java 17 or newer")
    main()
