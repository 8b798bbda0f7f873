"""The application that INSTALLED_APPS names as `jobq.django`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules

from jobq.django.checks import check_settings


class JobqConfig(AppConfig):
    """Imports the module `jobs` of every installed application, where tasks are defined."""

    name = "jobq.django"
    label = "jobq"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called by Django when all models are loaded."""
        checks.register(check_settings)
        autodiscover_modules("jobs")
