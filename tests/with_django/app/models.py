"""One table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, which a job confirms."""

    name = models.CharField(max_length=50, unique=True)
    confirmed = models.BooleanField(default=False)
