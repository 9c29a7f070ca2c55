"""The one app of a Django project, put together from its settings when Django is ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections

from kagzi.app import Kagzi
from kagzi.cli.application import load_app
from kagzi.contrib.django.conf import MEMORY, Conf, Problem, database_url, read
from kagzi.contrib.django.tasks import offer_tasks
from kagzi.errors import InvalidRequest


class Project:
    """The app of the project, its settings, and what is wrong with them."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # loading the app runs code of the user's, which may ask for the app
        self._app: Kagzi | None = None
        self._read = False
        self._conf = Conf()
        self._problems: list[Problem] = []
        # Whether runs at a URL can be started in transactions of an alias, once that was tried.
        self.joins: dict[tuple[str, str], bool] = {}

    @property
    def conf(self) -> Conf:
        self._prepare()
        return self._conf

    @property
    def problems(self) -> list[Problem]:
        """The problems that the checks framework tells, with which the app is not made."""
        self._prepare()
        return self._problems

    def app(self) -> Kagzi:
        self._prepare()
        if self._app is None:
            told = [problem.message for problem in self._problems]
            told = told or ["KAGZI['app'] is being imported, and asks for itself; make it there: app = Kagzi()"]
            raise ImproperlyConfigured("; ".join(told))
        return self._app

    def forget(self) -> None:
        """Read the settings again: tests change them."""
        with self._guard:
            self._app, self._read = None, False

    def _prepare(self) -> None:
        with self._guard:
            if self._read:
                return
            self._conf, self._problems = read()
            self._read = True
            try:
                self._app = self._make()
            except InvalidRequest as error:
                self._problems.append(Problem(3, f"KAGZI['app']: {error}"))

    def _make(self) -> Kagzi:
        conf = self._conf
        app = Kagzi() if conf.app is None else load_app(conf.app)
        if conf.url is not None and app.url is None:
            app.url = conf.url
        app.default_to(self.home, namespace=conf.namespace)
        app.around_def_steps(orm_safe)
        offer_tasks(app)
        return app

    def home(self) -> str:
        """Where runs live by default: in Django's database."""
        return database_url(self._conf.database)


@contextmanager
def orm_safe() -> Iterator[None]:
    """What Django does around a request: connections of this thread that are too old, or broken, are not used, and
    those that should not be kept are closed."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


project = Project()


def get_app() -> Kagzi:
    """The app of this project: that of KAGZI["app"], or one that is made here. ImproperlyConfigured if it cannot be."""
    return project.app()


def shares_database(app: Kagzi) -> bool:
    """Returns whether runs live in Django's database, as they do unless something else is set."""
    return app.url is not None and app.url != MEMORY and app.url == project.home()
