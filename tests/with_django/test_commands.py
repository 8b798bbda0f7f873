"""`manage.py jobq_worker` and `manage.py jobq`, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from jobq.django import Queue
from tests.with_django.app.jobs import confirm, count
from tests.with_django.app.models import Order

ROOT = Path(__file__).parents[2]
SETTINGS = "tests.with_django.settings"
MANAGE = [sys.executable, "-W", "error", "-m", "django"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    return {**kept, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **more}


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MANAGE, *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def working(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*MANAGE, "jobq_worker", *arguments],
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["one", "two processes"])
def test_a_worker_runs_the_jobs_of_the_project_and_stops_on_sigterm(
    orders: Queue, options: list[str]
) -> None:
    order = Order.objects.create(name="one")
    with working(*options) as process:
        assert confirm.sync.enqueue(order.id).result(timeout=30) is True
        order.refresh_from_db()
        assert order.confirmed
        assert count.sync.enqueue().result(timeout=30)[0] == 1
        assert {worker.concurrency for worker in orders.sync.workers()} == {7}  # of the settings
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[1]
        assert process.returncode == 0, said
        assert "Traceback" not in said


@pytest.mark.usefixtures("orders")
def test_a_worker_finds_the_tasks_of_djangos_framework_by_itself() -> None:
    try:
        from jobq.django.tasks.framework import task_backends
    except ImportError:
        pytest.skip("pip install django-tasks")
    from tests.with_django.app.tasks import count_orders

    Order.objects.create(name="one")
    with working():
        result = count_orders.enqueue()
        queue, id = result.id.rsplit(":", 1)
        task_backends["default"].queue(queue).sync.job(id).wait(timeout=30)
        result.refresh()
    assert result.return_value == 1


def test_the_commands_of_jq_ctl_use_the_store_of_the_settings(orders: Queue) -> None:
    job = confirm.sync.enqueue(1)
    listed = manage("jobq", "job", "list", "-q", "orders", "-o", "json", "--settings", SETTINGS)
    assert listed.returncode == 0, listed.stderr
    assert [each["id"] for each in json.loads(listed.stdout)] == [job.id]
    missing = manage("jobq", "job", "status", "nobody")
    assert missing.returncode == 1
    assert "no job nobody" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_the_help_of_both_commands_names_them() -> None:
    for command, teaches in (("jobq", "queue"), ("jobq_worker", "--concurrency")):
        said = manage(command, "--help")
        assert said.returncode == 0, said.stderr
        assert f"{command} [OPTIONS]" in said.stdout
        assert teaches in said.stdout


def test_the_help_of_manage_py_teaches_the_options() -> None:
    assert "--concurrency" in manage("help", "jobq_worker").stdout


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"INSTALLED_APPS": ["jobq.django"]}, "this project has no queue"),
        ({"INSTALLED_APPS": ["jobq.django"], "JOBQ": {"URI": ""}}, "unknown key 'URI'"),
    ],
    ids=["no queue", "a wrong setting"],
)
def test_a_project_that_has_no_work_is_told_so_in_one_line(
    settings: dict[str, object], says: str, tmp_path: Path
) -> None:
    lines = [f"{name} = {value!r}" for name, value in settings.items()]
    (tmp_path / "bare.py").write_text("\n".join(lines))
    done = subprocess.run(
        [*MANAGE, "jobq_worker", "--settings", "bare", "--pythonpath", str(tmp_path)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("orders")
def test_call_command_returns_the_output_and_raises_the_error() -> None:
    confirm.sync.enqueue(1)
    out = StringIO()
    call_command("jobq", "queue", "list", "--output", "json", stdout=out)
    assert "orders" in out.getvalue()
    with pytest.raises(CommandError, match="no job nobody"):
        call_command("jobq", "job", "status", "nobody")


def test_check_reports_a_mistake_in_the_settings() -> None:
    with (
        override_settings(JOBQ={"WORKER": {"threads": 3}}),
        pytest.raises(CommandError, match="unknown option 'threads'"),
    ):
        call_command("check")
