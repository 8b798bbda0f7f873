"""A Django project with a database in a file, in this process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if find_spec("django") is None:
    pytest.skip("pip install 'jobq[django]'", allow_module_level=True)

import django

# A folder for each process of a test run. The processes that a test starts use the same one.
os.environ["JOBQ_TEST_FOLDER"] = tempfile.mkdtemp(prefix="jobq-django-")
atexit.register(shutil.rmtree, os.environ["JOBQ_TEST_FOLDER"], ignore_errors=True)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.with_django.settings")
django.setup()

from django.core.management import call_command  # noqa: E402 (after django.setup)
from django.db import connections  # noqa: E402

from jobq import Queue  # noqa: E402


@pytest.fixture(scope="session")
def tables() -> None:
    """The tables of the project, in the file of this process."""
    call_command("migrate", run_syncdb=True, verbosity=0)


@pytest.fixture(autouse=True)
def _only_queues_of_the_project() -> Iterator[None]:
    """Forget the queues that a test defines: a worker of the next one would work on them."""
    from jobq.django import queue

    before = set(queue._queues)
    yield
    for defined in set(queue._queues) - before:
        queue._queues.discard(defined)


@pytest.fixture
def database(tables: None) -> Iterator[None]:
    """An empty database. Its connection is closed after the test."""
    from tests.with_django.app.models import Order

    Order.objects.all().delete()
    yield
    connections.close_all()


@pytest.fixture
def orders(database: None) -> Iterator[Queue]:
    """The queue of the project, open and empty."""
    from tests.with_django.app.jobs import orders

    with orders.sync:
        orders.sync.obliterate(force=True)
        yield orders
