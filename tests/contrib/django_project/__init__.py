"""A Django project for tests, configured once in each process: `configure()`."""

from __future__ import annotations

import django
from django.conf import settings

APP = "tests.contrib.django_project"


def configure() -> None:
    if settings.configured:
        return
    settings.configure(
        USE_TZ=True,
        TIME_ZONE="UTC",
        SECRET_KEY="tests",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        # Tests say which file and which database.
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "nowhere.db", "OPTIONS": {"timeout": 60}},
            "postgres": {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere"},
        },
        INSTALLED_APPS=[
            APP,
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "kagzi.contrib.django",
            *(["django_tasks"] if django.VERSION < (6, 0) else []),
        ],
        LOGGING_CONFIG=None,
        TASKS={
            "default": {
                "BACKEND": "kagzi.contrib.django.backend.KagziBackend",
                "QUEUES": ["default", "mail"],
            }
        },
    )
    django.setup()
