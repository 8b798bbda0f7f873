"""The queues of a Django project, for `manage.py jobq_worker`.

jq-worker works on all queues in a module, so importing this module collects them in it. With
DJANGO_SETTINGS_MODULE, `jq-worker jobq.django.discovered` does the same.
"""

from __future__ import annotations

from jobq.django import ready as ready  # sets Django up
from jobq.django.workers import queues_to_work_on
from jobq.errors import ConfigError

found = queues_to_work_on()
if not found:
    raise ConfigError(
        "this project has no queue: define one in the module jobs.py of an installed application, "
        'emails = jobq.django.Queue("emails"), or use jobq.django.TaskBackend in settings.TASKS'
    )
globals().update({f"queue_{n}": queue for n, queue in enumerate(found)})
