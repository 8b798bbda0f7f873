"""format("jobq") on a SQLite store: write jobs, and read jobs and events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobq import Queue, State, Worker
from jobq.core.records import wire
from jobq.pipeline.datasource import register
from jobq.pipeline.datasource.columns import absolute_url
from jobq.pipeline.datasource.jobs import JobsReader
from jobq.pipeline.sources import open_source
from scripts import postgres
from tests.stores.valkey.servers import running as running_valkey
from tests.stores.valkey.servers import valkey_or_skip


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


def test_an_invalid_row_fails_the_write_before_anything_of_its_partition_is_stored(
    spark: SparkSession, url: str
) -> None:
    rows = [(n, -7 if n in (400, 450) else 1) for n in range(500)]
    frame = spark.createDataFrame(rows, "n int, _priority int").coalesce(1)
    with pytest.raises(Exception, match="2 of 500 rows of a partition") as failed:
        write(frame, url)
    assert "priority=-7" in str(failed.value)
    assert '"n":400' in str(failed.value)
    assert sum(with_queue(url, Queue.counts).values()) == 0


def test_rejected_rows_are_kept_as_rows_and_the_others_accepted(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    frame = spark.createDataFrame(
        [(1, 1, {"a": "b"}), (2, -7, {"c": "d"}), (3, None, None)],
        "n int, _priority int, labels map<string,string>",
    ).coalesce(1)
    for again in range(2):
        write(frame, url, rejects=str(tmp_path / "rejects"), report=str(tmp_path / "report.json"))
        report = json.loads((tmp_path / "report.json").read_text())
        assert (report["rejected"], report["accepted"]) == (1, 0 if again else 2)
    jobs = with_queue(url, everything).values()
    assert {job.kwargs["n"]: job.kwargs["labels"] for job in jobs} == {1: {"a": "b"}, 3: None}
    kept = spark.read.parquet(str(tmp_path / "rejects"))
    assert kept.columns == ["n", "_priority", "labels", "_why"]
    assert [(row.n, row.labels) for row in kept.collect()] == [(2, {"c": "d"})] * 2
    assert "priority" in kept.first()._why  # type: ignore[union-attr]


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


@contextmanager
def running(store: str, folder: Path) -> Iterator[str]:
    """The URL of a store."""
    if store == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
    elif store == "valkey":
        with running_valkey(valkey_or_skip(), folder) as server:
            yield server.url
    else:
        with postgres.running(postgres.FAST) as server:
            yield server.url


@pytest.mark.parametrize(
    "store",
    [
        "sqlite",
        # The stores' own tests show that such listings are complete.
        pytest.param("valkey", marks=pytest.mark.faults),
        pytest.param("postgres", marks=pytest.mark.faults),
    ],
)
def test_the_jobs_of_a_large_state_are_divided_among_tasks(store: str, tmp_path: Path) -> None:
    async def fill(queue: Queue) -> None:
        await queue.task_by_name("send").enqueue_many([(n,) for n in range(700)])
        await queue.task_by_name("call").enqueue_many([(n,) for n in range(300)])
        delayed = queue.task_by_name("send").options(delay=3600)
        await delayed.enqueue_many([(n,) for n in range(250)])

    with running(store, tmp_path) as url:
        with_queue(url, fill)

        def read(**options: str) -> tuple[list[int], list[dict[str, Any]]]:
            reader = JobsReader({"url": url, "queue": "mail", **options})
            tasks = [
                [row for batch in reader.read(part) for row in batch.to_pylist()]
                for part in reader.partitions()
            ]
            return [len(task) for task in tasks if task], [row for task in tasks for row in task]

        sizes, rows = read()
        assert sorted(sizes) == [250, 1000]
        sizes, divided = read(jobsPerTask="100")
        assert max(sizes) <= 100
        assert (len(divided), {row["id"] for row in divided}) == (1250, {r["id"] for r in rows})
        sizes, waiting = read(jobsPerTask="120", state="waiting", name="call")
        assert len(sizes) > 1
        assert sorted(row["args"] for row in waiting) == sorted(f"[{n}]" for n in range(300))


def test_a_large_state_is_read_by_several_spark_tasks(spark: SparkSession, url: str) -> None:
    write(spark.range(500).selectExpr("id AS n"), url)
    options = {"url": url, "queue": "mail", "state": "waiting", "jobsPerTask": "150"}
    jobs = spark.read.format("jobq").options(**options).load()
    by_task = jobs.groupBy(F.spark_partition_id()).agg(F.count("id"), F.collect_set("id")).collect()
    assert [len(row[2]) for row in by_task] == [row[1] for row in by_task]
    assert len(by_task) >= 3
    assert len({id for row in by_task for id in row[2]}) == sum(row[1] for row in by_task) == 500


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


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("invoice string", {"id": "invoce"}, r"no column 'invoce' \(did you mean 'invoice'\?\)"),
        ("invoice string", {"rejected": "x"}, r'unknown .option\("rejected".*mean \'rejects\''),
        ("_prioritiy string", {}, r"column '_prioritiy'.*\(did you mean '_priority'\?\)"),
        ("_colour string", {}, "the options are _id, _task, _priority"),
    ],
)
def test_a_write_refuses_what_it_would_ignore(
    spark: SparkSession, url: str, columns: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        write(spark.createDataFrame([("1",)], columns), url, **options)


def test_a_read_that_can_only_be_empty_is_an_error(spark: SparkSession, url: str) -> None:
    def load(**options: str) -> None:
        given = {"url": url, "queue": "mail", **options}
        spark.read.format("jobq").options(**given).load().collect()

    with pytest.raises(Exception, match=r"no store at .*jobs.db does not exist"):
        load()
    with_queue(url, Queue.pause)
    load()
    with pytest.raises(Exception, match="state='done' is not one of delayed"):
        load(state="failed,done")
    with pytest.raises(Exception, match=r"no queue 'mial'.*\(did you mean 'mail'\?\)"):
        load(queue="mial")
    with pytest.raises(Exception, match=r'unknown .option\("sate".*\(did you mean \'state\'\?\)'):
        load(sate="failed")
    with pytest.raises(Exception, match=r'"pushdown", "yes".*use true or false'):
        load(pushdown="yes")
    with pytest.raises(Exception, match=r'"jobsPerTask", "0".*a number of at least 1'):
        load(jobsPerTask="0")


def test_a_missing_option_is_named_in_the_error(spark: SparkSession, url: str) -> None:
    with pytest.raises(Exception, match=r'needs .option\("queue"'):
        spark.range(1).write.format("jobq").option("url", url).mode("append").save()
    with pytest.raises(Exception, match="memory:// is visible in one process only"):
        spark.read.format("jobq").options(url="memory://", queue="mail").load().collect()


def test_a_relative_sqlite_file_is_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_url("sqlite:///a%20b.db?synchronous=full") == (
        f"sqlite:///{tmp_path}/a%20b.db?synchronous=full"
    )
    for url in (f"sqlite:///{tmp_path}/jobs.db", "valkey://host:6379", "postgresql://h/db"):
        assert absolute_url(url) == url
