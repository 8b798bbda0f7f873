"""The Django project of these tests."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jobq import Retry

FOLDER = Path(os.environ["JOBQ_TEST_FOLDER"])

SECRET_KEY = "of a test"
USE_TZ = True
ROOT_URLCONF = "tests.with_django.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "jobq.django",
    "tests.with_django.app",
]
if find_spec("django_tasks") and not find_spec("django.tasks"):
    INSTALLED_APPS.append("django_tasks")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "rows.db",
        "OPTIONS": {"timeout": 20},
    }
}
TASKS: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "jobq.django.TaskBackend", "QUEUES": ["default", "slow", "orders"]},
    "retrying": {
        "BACKEND": "jobq.django.TaskBackend",
        "QUEUES": [],
        "OPTIONS": {"retry": Retry(2, base=0), "enqueue": "after_commit"},
    },
}
TASKS["hurried"] = {"BACKEND": "jobq.django.TaskBackend", "OPTIONS": {"timeout": 0.1}}
JOBQ = {"URL": f"sqlite:///{FOLDER}/jobs.db", "WORKER": {"concurrency": 7, "drain": "5s"}}
