"""The tests of the shop: `manage.py test`."""

from __future__ import annotations

from django.test import TestCase

from jobq import testing
from orders.jobs import emails, send_receipt
from orders.models import Order


class Receipts(TestCase):
    def test_a_receipt_follows_an_order(self) -> None:
        with testing.use(emails) as jobs:
            with self.captureOnCommitCallbacks(execute=True):
                self.client.post("/orders/", {"email": "ada@example.org"})
            order = Order.objects.get()
            jobs.sync.assert_enqueued(send_receipt, order.id)
            assert jobs.sync.drain(inline=True) == 1
            order.refresh_from_db()
            assert order.receipt_sent

    def test_a_receipt_for_no_order_raises(self) -> None:
        with testing.use(emails) as jobs:
            send_receipt.sync.enqueue(12)
            with self.assertRaises(Order.DoesNotExist):
                jobs.sync.drain(inline=True)
