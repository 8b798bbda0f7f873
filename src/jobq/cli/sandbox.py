"""`jq-worker --check-sandbox`: which permissions this machine can enforce."""

from __future__ import annotations

import click

from jobq.cli.options import FAILED
from jobq.executors import sandbox


def _print_features(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    found = sandbox.features()
    wide = max(len(feature.permission) for feature in found)
    click.echo(f"{sandbox.machine()}\n")
    for feature in found:
        answer = "no " if feature.missing else "yes"
        click.echo(f"{answer}  {feature.permission:<{wide}}  needs {feature.needs}")
        if feature.missing:
            click.echo(f"     {'':<{wide}}  {feature.missing}")
    if any(feature.missing for feature in found):
        click.echo(
            "\nA worker refuses to start a task whose permissions it cannot enforce. With "
            '`enforce="best-effort"` it starts the task and logs what is missing.'
        )
        ctx.exit(FAILED)
    click.echo("\nThis machine enforces all permissions.")
    ctx.exit()


check_sandbox_option = click.option(
    "--check-sandbox",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=_print_features,
    help="Show which permissions of tasks this machine can enforce, and exit. "
    "The exit code is 1 if something is missing.",
)
"""An option that needs no app: it prints and exits before the others are read."""
