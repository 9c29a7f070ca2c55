"""manage.py kagzi_worker"""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload
from django.utils.module_loading import autodiscover_modules

from kagzi import logs
from kagzi.connect import default_url
from kagzi.contrib.django import compat
from kagzi.contrib.django.project import get_app, project
from kagzi.errors import InvalidRequest, KagziError
from kagzi.sdk.worker.member import member
from kagzi.sdk.worker.processes import process_count
from kagzi.settings import mask_url

_GRACE = "25s"
_GRACE_OF_RELOADS = "3s"


class Command(BaseCommand):
    help = (
        "Executes workflows and tasks until told to stop. SIGTERM drains: nothing more is claimed, running steps "
        "finish, the rest is handed to other workers at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "-q",
            "--queue",
            "--queue-name",
            dest="queues",
            action="append",
            metavar="NAME",
            help="a queue to serve; may be repeated, or several with commas between (default: KAGZI['queues'], else "
            "all queues that TASKS and workflows name)",
        )
        parser.add_argument("-c", "--concurrency", type=int, default=100, help="how many runs to drive at once")
        parser.add_argument("--threads", type=int, default=32, help="how many `def` steps and tasks to run at once")
        parser.add_argument(
            "--grace", metavar="DURATION", help=f"how long running steps may take at the end ({_GRACE})"
        )
        parser.add_argument(
            "--processes", default="1", metavar="N|auto", help="how many processes to start, each with slots of its own"
        )
        parser.add_argument(
            "--strict", action="store_true", help="fail a run whose step is called otherwise than recorded"
        )
        parser.add_argument(
            "--reload", action="store_true", default=None, help="start anew when a file changes (default with DEBUG)"
        )
        parser.add_argument("--no-reload", "--noreload", dest="reload", action="store_false")

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            processes = process_count(_number(options["processes"]))
        except InvalidRequest as error:
            raise CommandError(str(error), returncode=2) from None
        several = processes > 1 or member() is not None
        if options["reload"] and several:
            raise CommandError("--reload is for one process; leave --processes out")
        reload = bool(settings.DEBUG if options["reload"] is None else options["reload"]) and not several
        given = {
            "queues": options["queues"],
            "concurrency": options["concurrency"],
            "threads": options["threads"],
            "grace": options["grace"] or (_GRACE_OF_RELOADS if reload else _GRACE),
            "strict": options["strict"],
            "processes": processes,
        }
        if reload:
            # The worker is on a thread of its own then, and drains when the interpreter ends.
            autoreload.run_with_reloader(self._work, **given)
        else:
            self._work(**given)

    def _work(self, *, queues: list[str] | None, **given: Any) -> None:
        autoreload.raise_last_exception()
        try:
            app = get_app()
            autodiscover_modules("workflows", "tasks")
            _log(app.settings.log_format, app.settings.log_level)
            served = _queues(queues)
            place = default_url(app.settings) if app.url is None else app.url
            logging.getLogger("kagzi.worker").info(
                "runs live in namespace %s of %s; queues: %s", app.namespace, mask_url(place), ", ".join(served)
            )
            app.run_worker(queues=served, **given)
        except (KagziError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error


def _number(text: str) -> object:
    return int(text) if text.isdecimal() else text


def _queues(given: list[str] | None) -> list[str]:
    """What the command line says, else KAGZI["queues"], else all that is named anywhere."""
    if given:
        return [name for names in given for name in names.split(",") if name]
    if project.conf.queues:
        return list(project.conf.queues)
    found = set(get_app().queues_named())
    if compat.FRAMEWORK is not None:
        for backend in compat.task_backends.all():
            if getattr(backend, "runs_on_kagzi", False):
                found |= backend.queues
    return sorted(found)


def _log(format: Any, level: Any) -> None:
    """As `kagzi worker` does, unless LOGGING of the project says where to."""
    if not logging.getLogger().handlers and not logging.getLogger("kagzi").handlers:
        logs.configure(format, level)
