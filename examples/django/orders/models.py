"""The orders of a shop."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, and whether its receipt was sent."""

    email = models.EmailField()
    receipt_sent = models.BooleanField(default=False)

    class Meta:
        app_label = "orders"
