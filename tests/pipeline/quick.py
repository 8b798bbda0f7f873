"""Settings that make Spark cheaper for tests, which have few rows and many plans."""

from __future__ import annotations

import shlex

# With one compiler only, the JVM reserves 48 MB for compiled code instead of 240 MB. A session of
# some minutes fills that: the JVM then stops compiling, or dies.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
QUICK = {
    # Do not compile plans: interpreting them is faster for a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": JVM,
}


def options(**more: str) -> list[str]:
    """The settings as options of `jq-pipeline`. The names of `more` have `_` for each dot."""
    settings = QUICK | {name.replace("_", "."): value for name, value in more.items()}
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def submit_arguments() -> str:
    """The settings as PYSPARK_SUBMIT_ARGS, for commands that cannot get options."""
    return f"--driver-memory 1g {shlex.join(options())} pyspark-shell"
