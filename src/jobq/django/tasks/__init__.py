"""The backend for Django's Tasks framework: `django.tasks`, or the package django-tasks."""
