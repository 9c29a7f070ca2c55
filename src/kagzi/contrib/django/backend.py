"""Kagzi as a backend of Django's tasks.

    TASKS = {"default": {"BACKEND": "kagzi.contrib.django.backend.KagziBackend"}}

Nothing is opened here: Django makes backends at import, once for each thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from kagzi.app import Kagzi
from kagzi.connect import default_url, is_server
from kagzi.contrib.django import compat
from kagzi.contrib.django.project import get_app, project
from kagzi.contrib.django.results import read_input, read_result
from kagzi.contrib.django.tasks import NAME, PRIORITY_ZERO, NotATask, TaskNotFound, Terms, find_task, task_workflow
from kagzi.core.duration import Duration, parse_duration
from kagzi.core.instant import SECOND
from kagzi.core.limits import check_name
from kagzi.core.retry import Retry
from kagzi.core.tags import TAG_CHARACTERS
from kagzi.errors import Conflict, InvalidRequest, NotFound
from kagzi.sdk.blocking import refuse_blocking
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.handle import Handle
from kagzi.store.drivers import OtherDatabase

if compat.FRAMEWORK is None:
    raise ImproperlyConfigured(
        "KagziBackend needs Django's tasks: Django 6.0 or later, or the package django-tasks: pip install django-tasks"
    )

_OPTIONS: Final = ("retry", "timeout", "transaction")
_TRANSACTIONS: Final = ("auto", "join", "on_commit", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class KagziTask(compat.base.Task):
    """A task with what Kagzi can do for it: `@task(retry=Retry(attempts=5), timeout="5m")`.

    `retry` is how often it is tried again if it raises, `timeout` bounds each attempt. With `durable` the function is a
    workflow: it calls steps and may sleep. `key` makes enqueueing idempotent: a second
    `send.using(key=f"order-{id}").enqueue(id)` gets the result of the first.
    """

    retry: Retry | None = None
    timeout: Duration | None = None
    durable: bool = False
    key: str | None = None

    def using(self, **changes: Any) -> KagziTask:
        """The same task with other settings, those of Kagzi's included."""
        given = {name: value for name, value in changes.items() if value is not None}
        try:
            return replace(self, **given)
        except TypeError as error:
            raise TypeError(f"{self.name}.using(): {error}") from None


class KagziBackend(compat.BaseTaskBackend):
    task_class = KagziTask
    runs_on_kagzi = True
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        try:
            check_name(task.queue_name, "queue_name")
            _check_terms(task)
        except InvalidRequest as error:
            raise compat.InvalidTask(str(error)) from None

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        loop = asyncio._get_running_loop()
        if loop is not None:
            refuse_blocking(loop, "task.enqueue()", "`await task.aenqueue(...)`")
        self.validate_task(task)
        _check_findable(task)
        result = compat.base.TaskResult(
            task=task,
            id="",
            status=compat.base.TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        app = get_app()
        start = self._start_of(app, task)
        self._start(app, start, result, self._terms(task, result))
        return result

    def get_result(self, result_id: str) -> Any:
        handle = get_app().handle(result_id)
        try:
            run = handle.get_sync()
        except (NotFound, InvalidRequest):
            raise compat.exceptions.TaskResultDoesNotExist(result_id) from None
        if run.workflow != NAME:
            raise compat.exceptions.TaskResultDoesNotExist(result_id)
        return read_result(self.alias, run, handle.steps_sync() if run.executions else ())

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        found: list[checks.CheckMessage] = []
        if not apps.is_installed("kagzi.contrib.django"):
            hint = 'INSTALLED_APPS += ["kagzi.contrib.django"]'
            found.append(checks.Error(f"TASKS[{self.alias!r}] needs Kagzi's app", hint=hint, id="kagzi.E010"))
        for name in set(self.options) - set(_OPTIONS):
            hint = f"There are {', '.join(_OPTIONS)}."
            found.append(checks.Error(f"TASKS[{self.alias!r}] has no option {name!r}", hint=hint, id="kagzi.E011"))
        try:
            _check_retry(self.options.get("retry"))
            _timeout(self.options.get("timeout"))
            self._transaction()
        except InvalidRequest as error:
            found.append(checks.Error(f"TASKS[{self.alias!r}]: {error}", id="kagzi.E011"))
        return found

    # Starting.

    def _start_of(self, app: Kagzi, task: Any) -> Workflow[..., Any]:
        moment = task.run_after
        if moment is not None and timezone.is_naive(moment):
            moment = timezone.make_aware(moment)
        priority = task.priority + PRIORITY_ZERO
        options: dict[str, Any] = {"queue": task.queue_name, "priority": priority, "start_at": moment}
        if len(task.module_path) <= TAG_CHARACTERS:
            options["tags"] = {"task": task.module_path}
        if (key := getattr(task, "key", None)) is not None:
            options["id"] = key
        if getattr(task, "durable", False):
            options["retry"], options["timeout"] = self._retry(task), self._timeout(task)
        return task_workflow(app).options(**options)

    def _start(self, app: Kagzi, start: Workflow[..., Any], result: Any, terms: Terms) -> None:
        task = result.task
        call = (task.module_path, result.args, result.kwargs, terms)
        alias = project.conf.database
        how = self._transaction()
        if how == "none" or not connections[alias].in_atomic_block:
            self._started(result, _start(app, start, call))
        elif handle := self._join(app, start, call, alias, how):
            self._started(result, handle)
        else:
            run_id, begin = app.start_later(start, call, {})
            object.__setattr__(result, "id", run_id)
            transaction.on_commit(lambda: self._started(result, _start(app, start, call, begin)), using=alias)

    def _join(
        self, app: Kagzi, start: Workflow[..., Any], call: tuple[Any, ...], alias: str, how: str
    ) -> Handle[Any] | None:
        """Starts a run in Django's transaction; None if runs live in another database."""
        joined = start.options(connection=connections[alias])
        url = app.url or default_url(app.settings, make=False)
        known = project.joins.get((alias, url))
        if how == "join" or (how == "auto" and known):
            return _start(app, joined, call)
        if how == "on_commit" or known is False or is_server(url):
            return None
        try:
            # Tried once, with a savepoint: a database without Kagzi's tables would end the transaction.
            with transaction.atomic(using=alias):
                handle = _start(app, joined, call)
        except OtherDatabase:
            project.joins[alias, url] = False
            return None
        project.joins[alias, url] = True
        return handle

    def _started(self, result: Any, handle: Handle[Any]) -> None:
        object.__setattr__(result, "id", handle.id)
        compat.signals.task_enqueued.send(type(self), task_result=result)

    # What tasks and OPTIONS say.

    def _terms(self, task: Any, result: Any) -> Terms:
        retry, timeout = self._retry(task), self._timeout(task)
        return Terms(
            backend=self.alias,
            coroutine=asyncio.iscoroutinefunction(task.func),
            durable=getattr(task, "durable", False),
            retry=None if retry is None else msgspec.json.decode(retry.encode()),
            timeout=None if timeout is None else timeout.total_seconds(),
            # With a key the same call has to give the same input.
            enqueued_at=result.enqueued_at if getattr(task, "key", None) is None else None,
        )

    def _retry(self, task: Any) -> Retry | None:
        own: Retry | None = getattr(task, "retry", None)
        return own if own is not None else self.options.get("retry")

    def _timeout(self, task: Any) -> timedelta | None:
        own = getattr(task, "timeout", None)
        return _timeout(own if own is not None else self.options.get("timeout"))

    def _transaction(self) -> Literal["auto", "join", "on_commit", "none"]:
        how: Any = self.options.get("transaction", "auto")
        if how not in _TRANSACTIONS:
            raise InvalidRequest(f"transaction must be one of {', '.join(_TRANSACTIONS)}, not {how!r:.100}")
        chosen: Literal["auto", "join", "on_commit", "none"] = how
        return chosen


def _start(
    app: Kagzi, start: Workflow[..., Any], call: tuple[Any, ...], begin: Callable[[], Handle[Any]] | None = None
) -> Handle[Any]:
    """Starts the run, or finds the one with its key. That may have been enqueued on other terms, before a deploy."""
    try:
        return start.start_sync(*call) if begin is None else begin()
    except Conflict:
        if (key := start.run_options.id) is None:
            raise
        with contextlib.suppress(NotFound):  # of this very transaction, where nobody else sees it
            handle = app.find_sync(key)
            there = handle.get_sync()
            if there.workflow == NAME and read_input(there.input)[:3] == call[:3]:
                return handle
        raise


def _check_terms(task: Any) -> None:
    _check_retry(getattr(task, "retry", None))
    _timeout(getattr(task, "timeout", None))
    if (key := getattr(task, "key", None)) is not None:
        check_name(key, "key")
    durable: object = getattr(task, "durable", False)
    if not isinstance(durable, bool):
        raise InvalidRequest(f"durable must be True or False, not {durable!r:.100}")


def _check_retry(retry: object) -> None:
    if retry is None:
        return
    if not isinstance(retry, Retry):
        raise InvalidRequest(f"retry must be a kagzi.Retry, such as Retry(attempts=5), not {retry!r:.100}")
    if retry.when is not None:
        raise InvalidRequest(
            "retry has `when`, a function, which is not stored with a task; use retry_on or give_up_on"
        )


def _timeout(timeout: Duration | None) -> timedelta | None:
    if timeout is None:
        return None
    span = parse_duration(timeout, "timeout")
    if span == 0:
        raise InvalidRequest(f"timeout must be longer than 0, not {timeout!r:.100}")
    return timedelta(seconds=span / SECOND)


def _check_findable(task: Any) -> None:
    """Refuses a task that workers would not find, here and not there."""
    try:
        found = find_task(task.module_path)
    except (NotATask, TaskNotFound) as error:
        raise compat.InvalidTask(f"workers cannot find this task: {error}. Is it decorated with @task?") from error
    if found.func is not task.func:
        raise compat.InvalidTask(f"workers would find another task at {task.module_path}")
