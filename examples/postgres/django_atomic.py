"""Jobs and rows in one transaction: Django's connection, inside transaction.atomic()."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import django
from django.conf import settings

import jobq

URL = os.environ["DATABASE_URL"]
parts = urlsplit(URL)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.removeprefix("/"),
            "USER": parts.username,
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
    }
)
django.setup()

from django.db import connection, transaction  # noqa: E402 (after django.setup)

billing = jobq.Queue("billing_django", URL)


@billing.task
def send_receipt(order: int) -> None:
    print(f"receipt for order {order}")


def place_order(order: int) -> None:
    with transaction.atomic(), jobq.transaction(connection):
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO django_orders (id) VALUES (%s)", [order])
        send_receipt.sync.enqueue(order)


with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS django_orders (id int PRIMARY KEY)")
place_order(1)
try:
    place_order(1)  # the insert fails, and there is no second job
except django.db.IntegrityError:
    print("order 1 exists")

print(billing.sync.counts()[jobq.State.WAITING], "job waits")
connection.close()
