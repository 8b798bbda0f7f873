"""A model without a table, so that Django's admin lists jobs and knows who may see and change them.

Jobs are in the store of their queue, not in a table of Django.
"""

from __future__ import annotations

from django.db import models


class Job(models.Model):
    """Stands for the jobs of all queues. Its permissions are `jobq.view_job` and
    `jobq.change_job`."""

    class Meta:
        managed = False
        default_permissions = ("view", "change")
