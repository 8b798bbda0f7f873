"""The pages of Django's admin that list, rerun and cancel jobs."""

from __future__ import annotations

import asyncio
import math
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client, override_settings

from jobq import State, Worker, sync
from jobq.core.records.jobs import JobSpec, RetryData
from jobq.core.rules.new_jobs import Checked
from jobq.django import Queue, admin
from tests.with_django.app.jobs import break_off, confirm, orders

LIST = "/admin/jobq/job/"


@pytest.fixture
def client(orders: Queue) -> Client:
    """A superuser."""
    User.objects.all().delete()
    client = Client(enforce_csrf_checks=False)
    client.force_login(User.objects.create_superuser("root"))
    return client


def user_with(*permissions: str) -> Client:
    user = User.objects.create_user("ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def page(client: Client, path: str = LIST, **query: Any) -> str:
    response = client.get(f"{path}?{urlencode(query)}")
    assert response.status_code == 200
    return str(response.content.decode())


def test_jobs_are_listed_by_queue_state_and_task(client: Client) -> None:
    job = confirm.sync.enqueue(41)
    other = break_off.sync.enqueue()
    everything = page(client, queue="orders")
    assert job.id in everything
    assert "(41)" in everything
    assert other.id in everything
    assert job.id not in page(client, queue="orders", task="break_off")
    assert job.id not in page(client, queue="orders", state="failed")
    assert job.id in page(client, queue="orders", state="waiting", task="confirm")
    assert job.id in page(client, queue="orders", state="nonsense", page="-1")


def test_the_index_of_the_admin_leads_to_the_jobs(client: Client) -> None:
    assert f'href="{LIST}"' in page(client, "/admin/")


def test_a_long_list_has_pages(client: Client) -> None:
    jobs = confirm.sync.enqueue_many([(n,) for n in range(admin.PAGE + 1)])
    first, second = page(client, queue="orders"), page(client, queue="orders", page=1)
    assert "page=1" in first
    assert sum(job.id in first for job in jobs) == admin.PAGE
    assert sum(job.id in second for job in jobs) == 1
    assert "Next" not in second


def test_jobs_are_cancelled_and_the_event_names_the_user(client: Client, orders: Queue) -> None:
    jobs = [confirm.sync.enqueue(n) for n in range(2)]
    response = client.post(
        f"{LIST}?queue=orders",
        {"action": "cancel", "queue": "orders", "id": [job.id for job in jobs] + ["gone"]},
        follow=True,
    )
    said = response.content.decode()
    assert "Jobs cancelled: 2." in said
    assert "left alone, because of their state: 1." in said
    assert [job.state() for job in jobs] == [State.CANCELLED] * 2
    events = [e for e in orders.sync.events(after="0", follow=False) if e.kind == "cancelled"]
    assert [e.actor for e in events if e.job in {job.id for job in jobs}] == ["admin:root"] * 2


def test_a_failed_job_shows_its_error_and_can_be_rerun(client: Client, orders: Queue) -> None:
    job = break_off.sync.enqueue()
    worker = Worker(orders)
    sync.run(worker.__aenter__())
    job.wait(timeout=10)
    sync.run(worker.stop())
    shown = page(client, f"{LIST}job/", queue="orders", id=job.id)
    assert "ValueError: no" in shown
    query = urlencode({"queue": "orders", "id": job.id})
    said = client.post(
        f"{LIST}job/?{query}", {"action": "rerun", "queue": "orders"}, follow=True
    ).content.decode()
    assert "Jobs started over: 1." in said
    assert job.state() is State.WAITING


def test_what_a_job_carries_is_escaped(client: Client) -> None:
    job = confirm.sync.options(meta={"by": "<script>alert(1)</script>"}).enqueue(1)
    for shown in (
        page(client, queue="orders"),
        page(client, f"{LIST}job/", queue="orders", id=job.id),
    ):
        assert "<script>alert(1)" not in shown


@pytest.mark.usefixtures("client")
def test_permissions_decide_who_sees_and_who_changes_jobs() -> None:
    job = confirm.sync.enqueue(1)
    cancel = {"action": "cancel", "queue": "orders", "id": job.id}
    assert Client().get(LIST).status_code == 302
    nobody = user_with()
    assert nobody.get(LIST).status_code == 403
    User.objects.filter(username="ann").delete()
    reader = user_with("view_job")
    assert "Rerun" not in page(reader, queue="orders")
    assert reader.post(LIST, cancel).status_code == 403
    assert job.state() is State.WAITING
    User.objects.filter(username="ann").delete()
    changer = user_with("view_job", "change_job")
    assert changer.post(LIST, cancel).status_code == 302
    assert job.state() is State.CANCELLED


def test_a_post_without_the_csrf_token_is_refused(client: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="root"))
    job = confirm.sync.enqueue(1)
    cancel = {"action": "cancel", "queue": "orders", "id": job.id}
    assert strict.post(LIST, cancel).status_code == 403
    assert job.state() is State.WAITING


def test_an_unknown_job_or_queue_is_not_found(client: Client) -> None:
    assert client.get(f"{LIST}job/?queue=orders&id=nobody").status_code == 404
    assert client.get(f"{LIST}job/?queue=nowhere&id=nobody").status_code == 404


def test_a_store_that_is_unavailable_is_told_on_the_page(
    client: Client, monkeypatch: pytest.MonkeyPatch, orders: Queue
) -> None:
    orders.sync.close()
    monkeypatch.setattr(orders._context.connection, "_url", "valkey://127.0.0.1:1/0?timeout=1")
    try:
        assert "The jobs cannot be read" in page(client, queue="orders")
    finally:
        orders.sync.close()


@pytest.mark.usefixtures("database")
def test_the_model_needs_no_migration() -> None:
    with override_settings(MIGRATION_MODULES={}):
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_a_damaged_job_is_listed_as_damaged_beside_others(client: Client) -> None:
    job = confirm.sync.enqueue(41)

    async def put() -> None:
        async with orders:
            store = await orders._context.store()
            damaged = JobSpec(
                queue=orders.qname,
                id="nan",
                name="confirm",
                payload=b"[[1],{}]",
                retry=RetryData(factor=math.nan),
            )
            await store.put(Checked([damaged]))  # past the check, which refuses it

    asyncio.run(put())
    everything = page(client, queue="orders")
    assert job.id in everything
    assert "nan" in everything
    assert "Unreadable" in page(client, f"{LIST}job/", queue="orders", id="nan")
