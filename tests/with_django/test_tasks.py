"""The backend for Django's Tasks framework: Django 6.0, or django-tasks with Django 5.2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

try:
    from jobq.django.tasks import framework
except ImportError:
    pytest.skip("pip install django-tasks", allow_module_level=True)

import jobq
from jobq import Worker, sync
from jobq.django.tasks.backend import TaskBackend
from jobq.django.tasks.results import class_path
from jobq.django.workers import queues_to_work_on
from tests.with_django.app import jobs, tasks
from tests.with_django.app.models import Order

Status = framework.TaskResultStatus


@pytest.fixture
def backend(database: None) -> Iterator[TaskBackend]:
    """The default backend, whose queues are empty."""
    everything = queues_to_work_on()
    for queue in everything:
        queue.sync.obliterate(force=True)
    yield framework.task_backends["default"]
    for queue in everything:
        queue.sync.close()


@pytest.fixture
def worker(backend: TaskBackend) -> Iterator[Worker]:
    """A worker on all queues of the project."""
    worker = Worker(*queues_to_work_on(), concurrency=4, name="w1")
    sync.run(worker.__aenter__())
    yield worker
    sync.run(worker.stop())


@pytest.fixture
def signals() -> Iterator[list[tuple[str, Any, Any]]]:
    """Every signal: its name, its sender and the status at that time."""
    heard: list[tuple[str, Any, Any]] = []
    receivers = []
    for name in ("task_enqueued", "task_started", "task_finished"):

        def hear(sender: Any, task_result: Any, _name: str = name, **_: Any) -> None:
            heard.append((_name, sender, task_result.status))

        getattr(framework, name).connect(hear)
        receivers.append((getattr(framework, name), hear))
    yield heard
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def ended(result: Any, timeout: float = 20) -> Any:
    """The result, once its job has ended."""
    queue, id = result.id.rsplit(":", 1)
    framework.task_backends[result.backend].queue(queue).sync.job(id).wait(timeout=timeout)
    result.refresh()
    return result


def test_the_backend_supports_all_four_features() -> None:
    assert TaskBackend.supports_defer
    assert TaskBackend.supports_async_task
    assert TaskBackend.supports_get_result
    assert TaskBackend.supports_priority


@pytest.mark.usefixtures("worker")
def test_a_task_runs_and_its_result_can_be_read(signals: list[Any]) -> None:
    order = Order.objects.create(name="one")
    result = tasks.confirm_order.enqueue(order.id, confirmed=True)
    assert (result.status, result.args, result.kwargs) == (
        Status.READY,
        [order.id],
        {"confirmed": True},
    )
    assert len(result.id) < 64
    ended(result)
    assert result.return_value == {"confirmed": 1}
    assert (result.attempts, result.worker_ids, result.errors) == (1, ["w1"], [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert tasks.confirm_order.get_result(result.id).return_value == {"confirmed": 1}
    # The worker may start the task before the caller has announced it.
    assert ("task_enqueued", TaskBackend, Status.READY) in signals
    assert [heard for heard in signals if heard[0] != "task_enqueued"] == [
        ("task_started", TaskBackend, Status.RUNNING),
        ("task_finished", TaskBackend, Status.SUCCESSFUL),
    ]


@pytest.mark.usefixtures("worker")
def test_an_async_task_runs_in_its_own_queue(signals: list[Any]) -> None:
    Order.objects.create(name="one")
    result = ended(tasks.count_orders.enqueue())
    assert (result.return_value, result.task.queue_name, result.task.priority) == (1, "slow", 10)
    assert {name for name, *_ in signals} == {"task_enqueued", "task_started", "task_finished"}


@pytest.mark.usefixtures("worker")
def test_a_queue_of_the_project_runs_its_own_jobs_and_tasks_of_django() -> None:
    order = Order.objects.create(name="one")
    result = tasks.confirm_order.using(queue_name="orders").enqueue(order.id)
    job = jobs.confirm.sync.enqueue(order.id)
    assert ended(result).return_value == {"confirmed": 1}
    assert job.result(timeout=10) is True


@pytest.mark.usefixtures("worker")
def test_a_task_can_be_enqueued_and_read_in_async_code() -> None:
    async def scenario() -> Any:
        result = await tasks.count_orders.aenqueue()
        queue, id = result.id.rsplit(":", 1)
        await framework.task_backends["default"].queue(queue).job(id).wait(timeout=20)
        await result.arefresh()
        return await tasks.count_orders.aget_result(result.id)

    assert asyncio.run(scenario()).return_value == 0


@pytest.mark.usefixtures("worker")
def test_an_error_has_the_full_path_of_its_class_and_the_task_is_not_retried(
    signals: list[Any],
) -> None:
    result = ended(tasks.fail_in_a_transaction.enqueue())
    assert result.status == Status.FAILED
    (error,) = result.errors
    assert error.exception_class_path == "tests.with_django.app.models.Order.DoesNotExist"
    assert "no order" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018
    assert ("task_finished", TaskBackend, Status.FAILED) in signals
    assert Order.objects.count() == 0


@pytest.mark.usefixtures("worker")
def test_a_retried_task_has_one_error_and_one_worker_per_attempt(signals: list[Any]) -> None:
    tasks.contexts.clear()
    result = ended(tasks.fail_at_first.using(backend="retrying").enqueue(3))
    assert (result.return_value, result.attempts, result.backend) == (3, 3, "retrying")
    assert {context.task_result.backend for context in tasks.contexts} == {"retrying"}
    assert result.worker_ids == ["w1", "w1", "w1"]
    assert [each.exception_class for each in result.errors] == [LookupError, LookupError]
    assert "attempt 1" in result.errors[0].traceback
    assert [context.attempt for context in tasks.contexts] == [1, 2, 3]
    names = sorted(name for name, *_ in signals)
    assert names == ["task_enqueued", "task_finished", *["task_started"] * 3]


@pytest.mark.usefixtures("worker")
def test_a_task_past_its_timeout_has_failed_with_a_timeout_error() -> None:
    heard: list[Any] = []

    def hear(task_result: Any, **_: Any) -> None:
        heard.append(task_result)

    framework.task_finished.connect(hear)
    try:
        result = ended(tasks.wait_for_ever.using(backend="hurried").enqueue())
    finally:
        framework.task_finished.disconnect(hear)
    assert [each.exception_class for each in result.errors] == [TimeoutError]
    (told,) = heard
    assert (told.status, told.id, told.backend) == (Status.FAILED, result.id, "hurried")
    assert [each.exception_class for each in told.errors] == [TimeoutError]


@pytest.mark.usefixtures("worker")
def test_a_result_that_json_cannot_say_fails_the_task() -> None:
    result = ended(tasks.return_a_set.enqueue())
    assert result.status == Status.FAILED
    assert result.errors[0].exception_class is TypeError


def test_a_deferred_task_waits_until_it_is_due(backend: TaskBackend) -> None:
    due = timezone.now() + timedelta(hours=1)
    result = tasks.confirm_order.using(run_after=due, priority=-100).enqueue(1)
    job = backend.queue("default").sync.job(result.id.rsplit(":", 1)[1]).info()
    assert (job.state, job.priority) == ("delayed", 0)
    assert abs(job.due_at - due) < timedelta(seconds=1)
    read = backend.get_result(result.id)
    assert (read.status, read.task.priority) == (Status.READY, -100)
    assert abs(read.task.run_after - due) < timedelta(seconds=1)


def test_higher_priorities_run_first(backend: TaskBackend) -> None:
    tasks.contexts.clear()
    for priority in (0, -100, 100):
        tasks.fail_at_first.using(priority=priority).enqueue(0)
    worker = Worker(*queues_to_work_on(), concurrency=1)
    last = tasks.confirm_order.using(priority=-100).enqueue(1)
    sync.run(worker.__aenter__())
    ended(last)
    sync.run(worker.stop())
    assert [each.task_result.task.priority for each in tasks.contexts] == [100, 0, -100]


def test_a_task_runs_though_an_operator_has_raised_its_priority(backend: TaskBackend) -> None:
    result = tasks.confirm_order.enqueue(1)
    assert backend.queue("default").sync.job(result.id.rsplit(":", 1)[1]).reprioritise(5_000)
    assert backend.get_result(result.id).task.priority == 100
    worker = Worker(*queues_to_work_on(), concurrency=1)
    sync.run(worker.__aenter__())
    assert ended(result).status == Status.SUCCESSFUL
    sync.run(worker.stop())


@pytest.mark.usefixtures("worker")
def test_a_task_runs_though_its_backend_was_renamed_meanwhile(backend: TaskBackend) -> None:
    task = backend.queue("default").sync.task_by_name(tasks.confirm_order.module_path)
    job = task.options(priority=100, meta={"django_tasks": "renamed"}).enqueue(1)
    assert job.result(timeout=20) == {"confirmed": 0}
    result = backend.get_result(f"default:{job.id}")
    assert (result.status, result.backend) == (Status.SUCCESSFUL, "default")


@pytest.mark.usefixtures("worker")
def test_times_have_no_zone_if_the_project_uses_none() -> None:
    heard: list[Any] = []

    def hear(task_result: Any, **_: Any) -> None:
        heard.append(task_result)

    framework.task_finished.connect(hear)
    try:
        with override_settings(USE_TZ=False):
            due = datetime.now()
            result = ended(tasks.confirm_order.using(run_after=due).enqueue(1))
    finally:
        framework.task_finished.disconnect(hear)
    for each in (result, *heard):
        times = (each.enqueued_at, each.started_at, each.last_attempted_at, each.finished_at)
        assert [at.tzinfo for at in times] == [None] * 4
        assert each.started_at <= each.finished_at
        assert each.task.run_after.tzinfo is None
    assert len(heard) == 1


def test_a_cancelled_task_has_failed(backend: TaskBackend) -> None:
    result = tasks.confirm_order.enqueue(1)
    assert backend.queue("default").sync.job(result.id.rsplit(":", 1)[1]).cancel()
    result.refresh()
    assert result.status == Status.FAILED
    assert result.errors[-1].exception_class is jobq.JobCancelled


def test_a_task_is_enqueued_at_once_inside_a_transaction(backend: TaskBackend) -> None:
    with transaction.atomic():
        result = tasks.confirm_order.enqueue(1)
        assert backend.get_result(result.id).status == Status.READY
        transaction.set_rollback(True)
    assert backend.get_result(result.id).status == Status.READY


@pytest.mark.usefixtures("backend")
def test_after_commit_is_an_option(signals: list[Any]) -> None:
    task = tasks.confirm_order.using(backend="retrying")
    with transaction.atomic():
        result = task.enqueue(1)
        with pytest.raises(framework.TaskResultDoesNotExist):
            result.refresh()
        assert signals == []
    result.refresh()
    assert (result.status, len(signals)) == (Status.READY, 1)
    with transaction.atomic():
        lost = task.enqueue(1)
        transaction.set_rollback(True)
    with pytest.raises(framework.TaskResultDoesNotExist):
        lost.refresh()


@pytest.mark.parametrize("id", ["", "default", "default:nobody", ":x", "no such queue:x", "a:b:c"])
def test_an_unknown_id_has_no_result(backend: TaskBackend, id: str) -> None:
    with pytest.raises(framework.TaskResultDoesNotExist):
        backend.get_result(id)


def test_a_job_of_another_kind_has_no_result(backend: TaskBackend) -> None:
    job = backend.queue("default").sync.task_by_name("json.loads").enqueue("1")
    with pytest.raises(framework.TaskResultDoesNotExist):
        backend.get_result(f"default:{job.id}")


def test_a_task_of_a_module_that_is_not_imported_is_found_by_its_path(
    backend: TaskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobq.django.tasks import registry

    result = tasks.confirm_order.enqueue(1)
    monkeypatch.setattr(registry, "_tasks", {})
    assert backend.get_result(result.id).task.func is tasks.confirm_order.func


def test_bad_calls_are_refused_before_anything_is_stored(backend: TaskBackend) -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        tasks.confirm_order.enqueue()
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.confirm_order.enqueue(datetime.now())
    with pytest.raises(framework.InvalidTask, match="fit in the id"):
        tasks.confirm_order.using(backend="retrying", queue_name="q" * 40)
    with pytest.raises(framework.InvalidTask):
        tasks.confirm_order.using(queue_name="nowhere")
    assert sum(backend.queue("default").sync.counts().values()) == 0


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(jobq.ConfigError, match=r"unknown option 'retries' \(did you mean 'retry'"):
        TaskBackend("x", {"OPTIONS": {"retries": 3}})
    with pytest.raises(jobq.InvalidJob, match="retry='often'"):
        TaskBackend("x", {"OPTIONS": {"retry": "often"}})


@pytest.mark.parametrize(
    ("type", "path"),
    [
        ("ValueError", "builtins.ValueError"),
        ("LeaseLost", "jobq.LeaseLost"),
        ("jobq.LeaseLost", "jobq.LeaseLost"),
        ("jobq.CommandFailed", "jobq.JobFailed"),
        ("Expired", "jobq.JobFailed"),
        ("json.decoder.JSONDecodeError", "json.decoder.JSONDecodeError"),
    ],
)
def test_every_failure_names_a_class_that_can_be_imported(type: str, path: str) -> None:
    assert class_path(type) == path
