"""Jobs in Django's own PostgreSQL database, and the connections of a busy worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from django.conf import settings
from django.db import connections, transaction
from django.test import override_settings

from jobq import State, Worker, sync
from jobq.django import Queue
from jobq.django.config import database_url
from jobq.stores.postgres import address
from tests.stores.postgres.servers import FAST, ask, postgres_or_skip, running
from tests.waiting import wait_until

CONCURRENCY = 100
JOBS = 1_000
HELD = "select count(*) from pg_stat_activity where application_name = 'of django'"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose database is the alias `pg` of the project."""
    postgres_or_skip()
    with running({**FAST, "max_connections": "300"}) as server:
        yield server.url


@pytest.fixture
def pg(url: str) -> Iterator[str]:
    place, _, name = url.removeprefix("postgresql://postgres@").partition("/")
    host, _, port = place.partition(":")
    given: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": "postgres",
        "HOST": host,
        "PORT": port,
        "OPTIONS": {"application_name": "of django", "sslmode": "prefer"},
    }
    connections.settings["pg"] = connections.configure_settings(
        {"default": settings.DATABASES["default"], "pg": given}
    )["pg"]
    yield url
    connections["pg"].close()
    del connections["pg"]
    connections.settings.pop("pg")


def held(url: str) -> int:
    """How many connections Django has open."""
    ((count,),) = ask(url, HELD)
    return int(count)


def test_the_store_is_in_the_database_of_django_with_its_options(pg: str) -> None:
    found = database_url("pg")
    assert found.partition("?")[0] == pg.partition("?")[0]
    assert found.endswith("?sslmode=prefer")


def test_a_password_is_quoted_in_the_url(pg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["pg"].settings_dict, "PASSWORD", "a/b@c:d")
    assert "postgres:a%2Fb%40c%3Ad@" in database_url("pg")


@pytest.mark.parametrize(
    ("host", "port"), [("::1", "5432"), ("one,two", "6432"), ("one,two", "6432,6433"), ("::1", "")]
)
def test_the_url_names_every_host_and_port_of_the_settings(
    pg: str, monkeypatch: pytest.MonkeyPatch, host: str, port: str
) -> None:
    monkeypatch.setitem(connections["pg"].settings_dict, "HOST", host)
    monkeypatch.setitem(connections["pg"].settings_dict, "PORT", port)
    options = address.parse(database_url("pg")).options
    assert (options["host"], options.get("port", "")) == (host, port)


@pytest.fixture
def inside(pg: str) -> Iterator[Queue]:
    """A queue in the database of Django."""
    with override_settings(JOBQ={"DATABASE": "pg"}):
        queue = Queue("inside")
        with queue.sync:
            queue.sync.obliterate(force=True)
            yield queue


def test_a_job_is_part_of_the_transaction(pg: str, inside: Queue) -> None:
    add = inside.sync.task_by_name("add")
    with transaction.atomic(using="pg"):
        job = add.enqueue(1)
        assert inside.sync.counts()[State.WAITING] == 0
        with connections["pg"].cursor() as cursor:  # the job is stored, and only visible inside
            cursor.execute("select count(*) from jobq.jobs")
            assert cursor.fetchone() == (1,)
    assert job.info().args == (1,)
    with transaction.atomic(using="pg"):
        add.enqueue(2)
        transaction.set_rollback(True, using="pg")
    assert inside.sync.counts()[State.WAITING] == 1
    add.enqueue(3)  # outside of a transaction
    assert inside.sync.counts()[State.WAITING] == 2


def test_a_task_of_django_is_part_of_the_transaction(pg: str) -> None:
    if not (find_spec("django.tasks") or find_spec("django_tasks")):
        pytest.skip("pip install django-tasks")
    from jobq.django.tasks import framework
    from jobq.django.tasks.backend import TaskBackend
    from tests.with_django.app.tasks import confirm_order

    with override_settings(JOBQ={"DATABASE": "pg"}):
        backend = TaskBackend("default", {"OPTIONS": {"tenant": "tasks"}})
        with backend.queue("default").sync:
            with transaction.atomic(using="pg"):
                lost = backend.enqueue(confirm_order, [1], {})
                transaction.set_rollback(True, using="pg")
            with transaction.atomic(using="pg"):
                kept = backend.enqueue(confirm_order, [1], {})
            assert backend.get_result(kept.id).status == "READY"
            with pytest.raises(framework.TaskResultDoesNotExist):
                backend.get_result(lost.id)


def backend_pid() -> int:
    """The process of the server that serves this thread's connection."""
    with connections["pg"].cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_an_idle_worker_holds_no_connection_after_a_thousand_plain_jobs(pg: str) -> None:
    queue = Queue("busy", "memory://busy")
    busy = 0
    most_busy = most_held = 0

    @queue.task
    def query() -> None:
        nonlocal busy, most_busy, most_held
        with lock:
            busy += 1
            most_busy = max(most_busy, busy)
        with connections["pg"].cursor() as cursor:
            cursor.execute(HELD)
            count = cursor.fetchone()[0]
        with lock:
            most_held = max(most_held, count)
            busy -= 1

    lock = threading.Lock()
    with queue.sync:
        jobs = query.sync.enqueue_many([()] * JOBS)
        worker = Worker(queue, concurrency=CONCURRENCY)
        sync.run(worker.__aenter__())
        try:
            for job in jobs:
                job.wait(timeout=60)
            # A job has ended on record after its thread has closed its connection. The server
            # notices that a moment later.
            wait_until(lambda: held(pg) == 0, "the server to see the connections closed")
        finally:
            sync.run(worker.stop())
        assert queue.sync.counts()[State.COMPLETED] == JOBS
    assert most_busy > 1
    assert most_held <= CONCURRENCY


def test_a_persistent_connection_serves_the_next_job_of_its_thread(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["pg"], "CONN_MAX_AGE", None)
    queue = Queue("persistent", "memory://persistent")

    @queue.task
    def query(close: bool) -> int:
        pid = backend_pid()
        if close:
            connections["pg"].close()
        return pid

    with queue.sync:
        worker = Worker(queue, concurrency=1)
        sync.run(worker.__aenter__())
        try:
            pids = [query.sync.call(close) for close in (False, False, True)]
        finally:
            sync.run(worker.stop())
    assert len(set(pids)) == 1


def test_a_connection_that_the_server_has_ended_is_replaced_before_the_next_job(
    pg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["pg"], "CONN_MAX_AGE", None)
    monkeypatch.setitem(connections.settings["pg"], "CONN_HEALTH_CHECKS", True)
    queue = Queue("ended", "memory://ended")

    @queue.task(retry=0)
    def query(close: bool) -> int:
        pid = backend_pid()
        if close:
            connections["pg"].close()
        return pid

    with queue.sync:
        worker = Worker(queue, concurrency=1)
        sync.run(worker.__aenter__())
        try:
            first = query.sync.call(False)
            ask(pg, f"select pg_terminate_backend({first}, 5000)")
            second = query.sync.call(True)
        finally:
            sync.run(worker.stop())
    assert second != first
