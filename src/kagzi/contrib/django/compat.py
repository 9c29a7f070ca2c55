"""Django's tasks framework: part of Django from 6.0 on, and the package django-tasks before."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django import VERSION


def _framework() -> str | None:
    if VERSION >= (6, 0):
        return "django.tasks"
    try:
        import_module("django_tasks")
    except ModuleNotFoundError:
        return None
    return "django_tasks"


FRAMEWORK = _framework()  # None: there is none

if FRAMEWORK is not None:
    base: Any = import_module(f"{FRAMEWORK}.base")
    exceptions: Any = import_module(f"{FRAMEWORK}.exceptions")
    signals: Any = import_module(f"{FRAMEWORK}.signals")
    BaseTaskBackend: Any = import_module(f"{FRAMEWORK}.backends.base").BaseTaskBackend
    task_backends: Any = import_module(FRAMEWORK).task_backends
    InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    normalize_json: Any = import_module(
        "django.utils.json" if FRAMEWORK == "django.tasks" else "django_tasks.utils"
    ).normalize_json
