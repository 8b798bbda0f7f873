"""Importing this module sets Django up, in a process that manage.py has not started."""

from __future__ import annotations

import django
from django.apps import apps

if not apps.ready:
    django.setup()
