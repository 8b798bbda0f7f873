"""The `jq-pipeline` group: error messages, the options that commands share, and opening a lake."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from jobq.console.safe_errors import DiscreetGroup, safe_message
from jobq.core.version import __version__
from jobq.errors import ConfigError, JobqError
from jobq.pipeline.session import FORMATS, Format, open_session, require

F = TypeVar("F", bound=Callable[..., Any])

_console = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Print progress to standard error. Standard output is reserved for results."""
    _console.print(line, markup=False, soft_wrap=True)


class PipelineGroup(DiscreetGroup):
    """Prints jobq's errors as one line instead of a traceback, also those raised inside Spark."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except JobqError as e:
            raise click.ClickException(safe_message(e)) from e
        except Exception as e:
            if message := _jobq_message(e):
                raise click.ClickException(safe_message(message)) from e
            raise


def _jobq_message(error: Exception) -> str | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark.errors import PySparkException

    from jobq.pipeline.spark_errors import jobq_message

    return jobq_message(error) if isinstance(error, PySparkException) else None


@click.group(
    "jq-pipeline", cls=PipelineGroup, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="jq-pipeline")
def main() -> None:
    """Load job events into a lake, audit it, and write reports, on Spark."""
    require("pyspark", "spark")


# ── shared options ────────────────────────────────────────────────────────────────────────────────


def spark_options(command: F) -> F:
    """Add --master and --conf."""
    for option in (
        click.option(
            "--conf",
            "conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="A Spark setting. Repeat for several.",
        ),
        click.option(
            "--master",
            envvar="JQ_SPARK_MASTER",
            metavar="URL",
            help="Spark master. Default: the one given to spark-submit, otherwise local[*].",
        ),
    ):
        command = option(command)
    return command


def lake_option(command: F) -> F:
    """Add --lake."""
    return click.option(
        "--lake",
        required=True,
        envvar="JQ_LAKE",
        metavar="FOLDER",
        help="Folder of the lake: a local path, or hdfs://, s3a://, …",
    )(command)


def slo_option(command: F) -> F:
    """Add --slo."""
    return click.option(
        "--slo",
        "slo_file",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="YAML file with service-level targets. Default: two modest targets for every queue.",
    )(command)


def parse_day(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Check that an option is a date, in the form that tables are partitioned by."""
    try:
        return None if value is None else date.fromisoformat(value).isoformat()
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a date: use YYYY-MM-DD", param=option) from None


def parse_time(_: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """A time as milliseconds since the epoch. Without a zone, UTC."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a time: use e.g. 2026-11-16T14:30", param=option
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_settings(pairs: tuple[str, ...], option: str = "--conf") -> dict[str, str]:
    """Turn repeated KEY=VALUE options into a dictionary."""
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=option)
    return dict(pair.split("=", 1) for pair in pairs)


# ── sessions and lakes ────────────────────────────────────────────────────────────────────────────


def open_spark(
    name: str,
    master: str | None,
    conf: tuple[str, ...],
    *,
    format: Format = "parquet",
    kafka: bool = False,
) -> Any:
    """Start the Spark session of a command."""
    return open_session(name, master=master, format=format, kafka=kafka, conf=parse_settings(conf))


def open_lake(
    lake: str,
    master: str | None,
    conf: tuple[str, ...],
    *,
    format: Format | None = None,
    kafka: bool = False,
    catalog: str | None = None,
) -> Any:
    """Open a lake, or prepare a new one. `format` and `catalog` apply to a new lake only."""
    from jobq.pipeline.lake import Lake

    spark = open_spark(
        "jq-pipeline", master, conf, format=format or _stored_format(lake), kafka=kafka
    )
    return Lake(spark, lake, format=format, catalog=catalog)


def open_existing_lake(lake: str, master: str | None, conf: tuple[str, ...]) -> Any:
    """Open a lake that must exist. Otherwise ConfigError, and nothing is created."""
    return open_lake(lake, master, conf).require()


def _stored_format(lake: str) -> Format:
    """The format of a local lake, read from its state file before Spark starts.

    For a new or remote lake: JQ_LAKE_FORMAT, otherwise Parquet."""
    state = Path(lake.removeprefix("file://")) / "_jobq" / "state.json"
    given = os.environ.get("JQ_LAKE_FORMAT", "parquet")
    if state.exists():
        with suppress(ValueError):
            given = json.loads(state.read_text())["format"]
    if given not in FORMATS:
        raise ConfigError(f"JQ_LAKE_FORMAT={given!r}: use one of {', '.join(FORMATS)}")
    return given
