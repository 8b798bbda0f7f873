"""format("jobq") on a SQLite store: write jobs, and read jobs and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobq import Queue, State, Worker
from jobq.core import wire
from jobq.pipeline.datasource import register
from jobq.pipeline.sources import open_source


@pytest.fixture
def url(spark: SparkSession, tmp_path: Path) -> str:
    register(spark)
    return f"sqlite:///{tmp_path}/jobs.db"


def with_queue(
    url: str, work: Callable[[Queue], Coroutine[Any, Any, Any]], name: str = "mail"
) -> Any:
    async def go() -> Any:
        async with Queue(name, url) as queue:
            return await work(queue)

    return asyncio.run(go())


def write(frame: DataFrame, url: str, **options: str) -> None:
    frame.write.format("jobq").options(url=url, queue="mail", task="send", **options).mode(
        "append"
    ).save()


async def everything(queue: Queue) -> dict[str, Any]:
    return {job.id: job async for job in queue.find()}


def test_rows_become_jobs_with_ids_arguments_and_options(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    rows = [("i-1", "ann", 5, None), ("i-2", "bob", None, 3600.0)]
    write(
        spark.createDataFrame(rows, "invoice string, name string, _priority int, _delay double"),
        url,
        id="invoice",
    )
    jobs = with_queue(url, everything)
    assert {id: (job.kwargs, job.priority, job.state) for id, job in jobs.items()} == {
        "i-1": ({"invoice": "i-1", "name": "ann"}, 5, State.WAITING),
        "i-2": ({"invoice": "i-2", "name": "bob"}, 0, State.DELAYED),
    }


def test_rows_that_are_written_twice_are_enqueued_once(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    frame = spark.range(500).selectExpr("id AS n", "concat('user-', id) AS name").repartition(3)
    for expected in ({"accepted": 500, "duplicates": 0}, {"accepted": 0, "duplicates": 500}):
        write(frame, url, report=str(tmp_path / "report.json"))
        report = json.loads((tmp_path / "report.json").read_text())
        assert {name: report[name] for name in expected} == expected
    assert with_queue(url, Queue.counts)[State.WAITING] == 500
    write(frame, url, prefix="second-")
    assert with_queue(url, Queue.counts)[State.WAITING] == 1000


def test_invalid_rows_are_reported_and_the_others_accepted(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([(1, 1), (2, -7), (3, None)], "n int, _priority int").coalesce(1)
    write(frame, url, rejected=str(tmp_path / "rejected"), report=str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text())["rejected"] == 1
    (file,) = (tmp_path / "rejected").glob("*.jsonl")
    kept = json.loads(file.read_text())
    assert kept["row"] == {"n": 2, "_priority": -7}
    assert "priority" in kept["why"]
    assert with_queue(url, Queue.counts)[State.WAITING] == 2
    with pytest.raises(Exception, match="1 rows are not valid jobs"):
        write(frame, url, failOnRejected="true")


def test_jobs_are_read_with_results_and_filters_go_to_the_store(
    spark: SparkSession, url: str
) -> None:
    async def make(queue: Queue) -> None:
        @queue.task
        async def double(n: int) -> int:
            if n == 3:
                raise ValueError("three is too many")
            return 2 * n

        jobs = await double.options(retry=0).enqueue_many([(n,) for n in range(5)])
        await double.options(id="later", delay=3600).enqueue(9)
        async with Worker(queue):
            for job in jobs:
                await job.wait(timeout=30)

    with_queue(url, make)

    def load(**options: str) -> DataFrame:
        return spark.read.format("jobq").options(url=url, queue="mail", **options).load()

    jobs = load()
    done = jobs.where("state = 'completed'").selectExpr("int(result)", "args").collect()
    assert sorted(map(tuple, done)) == [(0, "[0]"), (2, "[1]"), (4, "[2]"), (8, "[4]")]
    failed = (
        jobs.where("state = 'failed' AND attempt = 1")
        .select("error_type", "error_message", "reason")
        .collect()
    )
    assert [tuple(row) for row in failed] == [("ValueError", "three is too many", "error")]
    assert [row.state for row in jobs.where("id IN ('later', 'nobody')").collect()] == ["delayed"]
    assert jobs.count() == 6
    assert load(state="failed,delayed").count() == 2
    assert [row["kwargs"] for row in load(id="later").collect()] == ["{}"]
    pushed = load(pushdown="true").where(
        "state = 'completed' AND name = 'double' AND int(result) > 2"
    )
    assert pushed.count() == 2
    assert "= completed" not in pushed._jdf.queryExecution().executedPlan().toString()


def test_events_are_streamed_from_the_log_and_acknowledged(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    async def make(queue: Queue) -> None:
        @queue.task
        async def nothing(n: int) -> None: ...

        jobs = await nothing.enqueue_many([(n,) for n in range(20)])
        async with Worker(queue, concurrency=4):
            for job in jobs:
                await job.wait(timeout=30)

    def read(name: str, **options: str) -> int:
        stream = spark.readStream.format("jobq").options(url=url, read="events", **options).load()
        writer = stream.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / name / "checkpoint")
        )
        query = (
            writer.option("path", str(tmp_path / name / "events"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = {
            progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]
        }
        return len(batches)

    with_queue(url, make)
    assert read("all") == 1
    assert read("all") == 0
    with_queue(url, make)
    assert read("all") == 1
    assert read("few", maxEventsPerTrigger="30", reader="few") >= 3
    for name in ("all", "few"):
        events = spark.read.parquet(str(tmp_path / name / "events"))
        assert (events.count(), events.select("id").distinct().count()) == (120, 120)
    kinds = {row.kind: row["count"] for row in events.groupBy("kind").count().collect()}
    assert kinds == {"accepted": 40, "started": 40, "completed": 40}
    source = open_source(url)
    lines = (
        source.stream(spark)
        .writeStream.format("memory")
        .queryName("lines")
        .trigger(availableNow=True)
    )
    lines.option("checkpointLocation", str(tmp_path / "lines")).start().awaitTermination()
    assert (
        spark.table("lines").where("_corrupt IS NULL AND v = 1 AND kind <> 'mark'").count() == 120
    )
    assert set(wire.FIELDS) < set(spark.table("lines").columns)


def test_a_stream_becomes_jobs(spark: SparkSession, url: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n{"n": 2}\n')
    stream = spark.readStream.schema("n int").json(str(tmp_path / "in"))
    writer = (
        stream.writeStream.format("jobq")
        .options(url=url, queue="mail", task="send")
        .trigger(availableNow=True)
    )
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert {job.kwargs["n"] for job in with_queue(url, everything).values()} == {1, 2}


def test_a_missing_option_is_named_in_the_error(spark: SparkSession, url: str) -> None:
    with pytest.raises(Exception, match=r'needs .option\("queue"'):
        spark.range(1).write.format("jobq").option("url", url).mode("append").save()
    with pytest.raises(Exception, match=r"no column 'invoce' \(did you mean 'invoice'\?\)"):
        write(spark.createDataFrame([("i-1",)], "invoice string"), url, id="invoce")
    with pytest.raises(Exception, match="memory:// is visible in one process only"):
        spark.read.format("jobq").options(url="memory://", queue="mail").load().collect()
