"""Jobs that are enqueued inside and outside `transaction.atomic()`."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test import override_settings

import jobq
from jobq import ConfigError, State
from jobq.django import Queue
from tests.with_django.app.jobs import confirm
from tests.with_django.app.models import Order

pytestmark = pytest.mark.usefixtures("orders")


def waiting(queue: jobq.Queue) -> int:
    return queue.sync.counts()[State.WAITING]


def test_a_job_outside_of_a_transaction_is_stored_at_once(orders: Queue) -> None:
    confirm.sync.enqueue(1)
    assert waiting(orders) == 1


def test_a_job_inside_atomic_is_stored_after_the_commit_and_has_its_id_at_once(
    orders: Queue,
) -> None:
    with transaction.atomic():
        order = Order.objects.create(name="one")
        job = confirm.sync.enqueue(order.id)
        assert waiting(orders) == 0
    assert [found.id for found in orders.sync.find()] == [job.id]


def test_a_rolled_back_transaction_leaves_no_job(orders: Queue) -> None:
    with transaction.atomic():
        confirm.sync.enqueue(1)
        confirm.sync.enqueue_many([(2,), (3,)])
        transaction.set_rollback(True)
    assert waiting(orders) == 0


def test_a_rolled_back_savepoint_takes_only_its_own_jobs_along(orders: Queue) -> None:
    with transaction.atomic():
        kept = confirm.sync.enqueue(1)
        with transaction.atomic():
            confirm.sync.enqueue(2)
            transaction.set_rollback(True)
    assert [found.id for found in orders.sync.find()] == [kept.id]


def test_a_bad_argument_is_refused_before_the_commit() -> None:
    with pytest.raises(jobq.InvalidJob), transaction.atomic():
        confirm.sync.enqueue(1, 2)  # type: ignore[call-arg]


def test_a_call_inside_atomic_is_refused() -> None:
    with transaction.atomic(), pytest.raises(ConfigError, match="wait in vain"):
        confirm.sync.call(1)


def test_a_queue_can_store_jobs_at_once_inside_a_transaction() -> None:
    hasty = Queue("hasty", "memory://hasty", enqueue="at_once")
    with hasty.sync, transaction.atomic():
        hasty.sync.task_by_name("any").enqueue()
        assert waiting(hasty) == 1


def test_a_wrong_setting_is_named() -> None:
    with override_settings(JOBQ={"URI": "memory://"}), pytest.raises(ConfigError) as caught:
        Queue("any")
    assert "unknown key 'URI' (did you mean 'URL'?)" in str(caught.value)
    with override_settings(JOBQ={"ENQUEUE": "later"}), pytest.raises(ConfigError) as caught:
        Queue("any")
    assert "use one of after_commit, in_transaction, at_once" in str(caught.value)
    with pytest.raises(ConfigError, match="enqueue='later'"):
        Queue("any", enqueue="later")  # type: ignore[arg-type]


def test_the_settings_name_the_store_when_the_queue_opens() -> None:
    queue = Queue("moved")
    with override_settings(JOBQ={"URL": "memory://moved", "TENANT": "acme"}):
        assert queue.url == "memory://moved"
        assert Queue("other").tenant == "acme"


def test_jobs_cannot_be_stored_in_a_database_that_is_not_postgresql() -> None:
    queue = Queue("inside")
    with (
        override_settings(JOBQ={"DATABASE": "default"}),
        pytest.raises(ConfigError, match="PostgreSQL only"),
    ):
        queue.sync.counts()


def test_the_connection_is_not_used_outside_of_a_transaction() -> None:
    connection.close()
    confirm.sync.enqueue(1)
    assert connection.connection is None
