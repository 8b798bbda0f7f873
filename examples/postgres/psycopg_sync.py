"""Jobs and rows in one transaction: psycopg, blocking. DATABASE_URL names a PostgreSQL database."""

from __future__ import annotations

import os

import psycopg

import jobq

URL = os.environ["DATABASE_URL"]
billing = jobq.Queue("billing", URL)


@billing.task
def send_receipt(order: int) -> None:
    print(f"receipt for order {order}")


def place_order(conn: psycopg.Connection, order: int) -> None:
    with conn.transaction(), jobq.transaction(conn):
        conn.execute("INSERT INTO orders (id) VALUES (%s)", [order])
        send_receipt.sync.enqueue(order)


with psycopg.connect(URL, autocommit=True) as conn:
    conn.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)")
    place_order(conn, 1)
    try:
        place_order(conn, 1)  # the same order again: the insert fails, and there is no second job
    except psycopg.errors.UniqueViolation:
        print("order 1 exists")

print(billing.sync.counts()[jobq.State.WAITING], "job waits")
