from __future__ import annotations

import asyncio
import logging
from typing import Any

from django.apps import AppConfig
from django.core.checks import register
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate

from kagzi.connect import make_store
from kagzi.contrib.django.checks import check_settings
from kagzi.contrib.django.project import project, shares_database

logger = logging.getLogger("kagzi")


class KagziConfig(AppConfig):
    name = "kagzi.contrib.django"
    label = "kagzi"
    verbose_name = "Kagzi"

    def ready(self) -> None:
        register(check_settings, "kagzi")
        setting_changed.connect(_forget, dispatch_uid="kagzi")
        post_migrate.connect(_make_tables, sender=self, dispatch_uid="kagzi")
        # Now, so that an app of the user's own knows its database before anybody uses it. Servers run no checks.
        for problem in project.problems:
            logger.error("%s %s", problem.message, problem.hint)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("KAGZI", "TASKS"):
        project.forget()


def _make_tables(*, using: str, verbosity: int = 1, **_: Any) -> None:
    """`manage.py migrate` makes Kagzi's tables, too. Workers do it by themselves; but on SQLite the first of them may
    come while a request holds the file, and in production a worker may have no right to."""
    conf = project.conf
    if not conf.migrate or using != conf.database or project.problems:
        return
    app = project.app()
    if not shares_database(app):
        return
    applied = asyncio.run(_migrate(str(app.url), app.settings.retention_days))
    if verbosity and applied:
        print(f"  Kagzi's tables: {applied} migrations applied")


async def _migrate(url: str, retention_days: int) -> int:
    store = make_store(url, retention_days=retention_days)
    missing = await store.missing_migrations()
    if missing:
        await store.open()
        await store.close()
    return len(missing)
