"""What `manage.py check` says about the settings."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from kagzi.contrib.django.project import project
from kagzi.errors import KagziError


def check_settings(**_: Any) -> list[CheckMessage]:
    found = [
        Error(problem.message, hint=problem.hint or None, id=f"kagzi.E{problem.number:03}")
        for problem in project.problems
    ]
    if not found:
        try:
            project.app().url  # noqa: B018
        except (ImproperlyConfigured, KagziError) as error:
            found.append(Error(str(error), id="kagzi.E004"))
    return found
