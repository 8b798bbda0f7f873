"""Database connections are checked before a job and closed after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import TestCase

from jobq import Depends, Queue, Worker, sync
from jobq.django.connections import with_connections
from tests.with_django.app import jobs
from tests.with_django.app.models import Order


@pytest.fixture
def worker(orders: Queue) -> Any:
    worker = Worker(orders, concurrency=4)
    sync.run(worker.__aenter__())
    yield worker
    sync.run(worker.stop())


@pytest.mark.usefixtures("worker")
def test_a_plain_handler_uses_the_database_and_its_connection_is_closed() -> None:
    jobs.seen.clear()
    for _ in range(3):
        assert jobs.count.sync.enqueue().result(timeout=10)[0] == 0
    assert jobs.seen == [None, None, None]  # no run has found the connection of the run before it


@pytest.mark.usefixtures("worker")
def test_dependencies_of_a_handler_use_the_connection_of_its_run(orders: Queue) -> None:
    held: list[bool] = []

    def first_order() -> Iterator[Order]:
        yield Order.objects.get()
        held.append(connection.connection is not None)

    @orders.task
    def name(order: Any = Depends(first_order)) -> str:
        held.append(connection.connection is not None)
        return str(order.name)

    jobs.seen.clear()
    Order.objects.create(name="one")
    try:
        assert name.sync.enqueue().result(timeout=10) == "one"
    finally:
        del orders.tasks["name"]
    assert held == [True, True]
    jobs.count.sync.enqueue().result(timeout=10)
    assert jobs.seen == [None]


@pytest.mark.usefixtures("worker")
def test_a_failed_run_leaves_neither_rows_nor_a_transaction() -> None:
    job = jobs.break_off.sync.enqueue()
    assert job.wait(timeout=10).state == "failed"
    assert jobs.count.sync.enqueue().result(timeout=10)[0] == 0


@pytest.mark.usefixtures("worker")
def test_an_async_handler_uses_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = 0

    def close_all() -> None:
        nonlocal closed
        closed += 1
        type(connections).close_all(connections)

    monkeypatch.setattr(connections, "close_all", close_all)
    Order.objects.create(name="one")
    assert jobs.acount.sync.enqueue().result(timeout=10) == 1
    assert closed == 1


@pytest.mark.usefixtures("database")
def test_a_child_process_sets_django_up_before_it_imports_the_task() -> None:
    Order.objects.create(name="one")
    with jobs.heavy.sync:
        worker = Worker(jobs.heavy, pool=1)
        sync.run(worker.__aenter__())
        try:
            assert jobs.count_apart.sync.enqueue().result(timeout=60) == 1
        finally:
            sync.run(worker.stop())


@pytest.mark.usefixtures("database")
def test_a_broken_connection_is_replaced_before_the_job() -> None:
    Order.objects.count()
    connection.connection.close()
    connection.errors_occurred = True  # as after an error of the driver
    assert with_connections(Order.objects.count)() == 0


@pytest.mark.usefixtures("database")
def test_an_error_while_closing_does_not_replace_the_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> str:
        Order.objects.count()

        def fail() -> None:
            raise OSError("gone")

        monkeypatch.setattr(connection, "close_if_unusable_or_obsolete", fail)
        return "done"

    assert with_connections(work)() == "done"
    assert "could not be closed after a job" in caplog.text


@pytest.mark.usefixtures("database")
def test_a_transaction_that_a_job_leaves_open_is_ended_after_it() -> None:
    def work() -> None:
        transaction.atomic().__enter__()
        Order.objects.create(name="left")

    with_connections(work)()
    assert Order.objects.count() == 0


@pytest.mark.usefixtures("tables")
class ATestCase(TestCase):
    """Inside a TestCase, whose transaction is rolled back."""

    def test_the_transaction_of_the_test_goes_on_around_a_job(self) -> None:
        order = Order.objects.create(name="one")
        with self.assertNumQueries(2):
            assert Order.objects.count() == 1
            assert with_connections(jobs.confirm)(order.id) is True
        order.refresh_from_db()
        assert order.confirmed
