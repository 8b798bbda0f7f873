"""`jq-pipeline load`: enqueue a job for each row of a table."""

from __future__ import annotations

import sys

import click

from jobq.pipeline.cli.group import open_spark, parse_settings, say, spark_options


@click.command()
@click.argument("path")
@click.option(
    "--format",
    "format",
    default="parquet",
    show_default=True,
    metavar="NAME",
    help="Spark's name for the format of PATH: parquet, json, csv, delta, …",
)
@click.option(
    "--option",
    "reading",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of Spark's reader, e.g. header=true. Repeat for several.",
)
@click.option(
    "--sql",
    metavar="QUERY",
    help="SQL query over the table `input`, e.g. to select and rename columns.",
)
@click.option("--url", required=True, envvar="JQ_URL", metavar="URL", help="URL of the store.")
@click.option("--queue", required=True, metavar="NAME", help="Queue to add the jobs to.")
@click.option("--tenant", metavar="NAME", help="Tenant. Default: JQ_TENANT, otherwise `default`.")
@click.option("--task", metavar="NAME", help="Task to run. Default: the column _task, row by row.")
@click.option(
    "--id",
    "id_columns",
    metavar="COLUMNS",
    help="Columns whose values form the job's id, separated by commas. Default: the column _id, "
    "otherwise a hash of the row.",
)
@click.option(
    "--prefix",
    metavar="TEXT",
    help="Prefix of ids that are formed from columns or hashes. With another prefix, the same "
    "rows become new jobs.",
)
@click.option(
    "--rejects",
    metavar="FOLDER",
    help="Folder for rows that are not valid jobs, as Parquet with the reason in the column _why; "
    "all other rows are enqueued. Default: one invalid row fails the command.",
)
@spark_options
def load(
    path: str,
    format: str,
    reading: tuple[str, ...],
    sql: str | None,
    url: str,
    queue: str,
    tenant: str | None,
    task: str | None,
    id_columns: str | None,
    prefix: str | None,
    rejects: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Enqueue a job for each row of PATH.

    Columns become arguments. The columns _priority, _delay, _key, … become options of the job.
    Loading the same rows again adds nothing.

    A row that is not a valid job fails the command before anything of its partition is enqueued.
    Exit code 1 if a row was rejected, also with --rejects."""
    from jobq.pipeline.jobs.load import check_store
    from jobq.pipeline.jobs.load import load as load_rows
    from jobq.pipeline.spark_errors import as_config_error

    check_store(url, queue, tenant)
    spark = open_spark("jq-pipeline load", master, conf)
    with as_config_error(f"cannot read {path} as {format}"):
        rows = spark.read.format(format).options(**parse_settings(reading, "--option")).load(path)
    if sql:
        rows.createOrReplaceTempView("input")
        with as_config_error("--sql"):
            rows = spark.sql(sql)
    given = {
        "url": url,
        "queue": queue,
        "tenant": tenant,
        "task": task,
        "id": id_columns,
        "prefix": prefix,
        "rejects": rejects,
    }
    options = {name: value for name, value in given.items() if value}
    found = load_rows(spark, rows, options, report=say)
    spark.stop()
    click.echo(
        f"{found['accepted']:,} jobs accepted, {found['duplicates']:,} already there, "
        f"{found['rejected']:,} rows rejected"
    )
    for example in found["examples"][:3]:
        click.echo(f"  {example}")
    sys.exit(1 if found["rejected"] else 0)
