"""The workflow of which all tasks of Django's are runs: `django.task("shop.tasks.send", args, kwargs)`.

Django keeps no list of tasks, so a worker cannot offer them one by one. It finds a task by its dotted name, and calls
nothing but tasks: who can start runs can have tasks executed that the project has given to Kagzi, and no other
function.

A task is one step, named like the task, whose policy and timeout are those of the task. A durable one is a workflow:
what it calls are steps, and it may sleep.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final

import msgspec
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import import_string
from msgspec import Struct

from kagzi.app import Kagzi
from kagzi.contrib.django import compat
from kagzi.core.retry import Retry, next_attempt
from kagzi.errors import NonRetryable
from kagzi.sdk.ambient import current as execution_of
from kagzi.sdk.context import attempt, current
from kagzi.sdk.definitions import Step, Workflow
from kagzi.sdk.payload import Codec
from kagzi.sdk.worker.bodies import current_step

logger = logging.getLogger("kagzi.django")

NAME: Final = "django.task"
VERSION: Final = "1"
PRIORITY_ZERO: Final = 100  # Django's -100 to 100 are 0 to 200 here, where there is nothing below 0
# Code that is being deployed: another worker may have the task, or this one soon.
_WAITS: Final = (5, 10, 20, 40, 80, 160, 300)


class Terms(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a task is executed, as it was when it was enqueued."""

    backend: str = "default"
    coroutine: bool = False
    durable: bool = False
    retry: dict[str, Any] | None = None  # as `Retry.encode` writes it; None: one attempt
    timeout: float | None = None  # in seconds
    enqueued_at: datetime | None = None

    def policy(self) -> Retry:
        return Retry.none if self.retry is None else Retry.decode(msgspec.json.encode(self.retry))


class TaskNotFound(NonRetryable):
    """There is no such task in the code of this worker."""


class NotATask(NonRetryable):
    """What a run names is not a task that was given to Kagzi."""


def offer_tasks(app: Kagzi) -> None:
    """Has workers of this app execute tasks, if TASKS gives any to Kagzi."""
    if not _given_to_kagzi() or app.find_workflow(NAME, VERSION) is not None:
        return

    async def django_task(
        task: str, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None, terms: Terms | None = None
    ) -> Any:
        call = Call(task, args or [], kwargs or {}, terms or Terms())
        if call.terms.durable:
            return await call.run_durably(app)
        return await call.run(app.codec)

    app.workflow(name=NAME, version=VERSION)(django_task)


def task_workflow(app: Kagzi) -> Workflow[..., Any]:
    found = app.find_workflow(NAME, VERSION)
    assert found is not None, "a backend of Kagzi's is in use, and TASKS does not name it"
    return found


def find_task(path: str) -> Any:
    """Returns the task with this dotted name. NotATask if it is anything else. Names come from whoever can start runs,
    so nothing is imported but modules of installed apps."""
    module = path.rpartition(".")[0]
    if module not in sys.modules and not _is_of_an_app(module):
        raise TaskNotFound(
            f"there is no task {path} here: {module} is neither imported nor part of an installed app; import it in "
            "tasks.py of one"
        )
    try:
        found = import_string(path)
    except ImportError as error:
        raise TaskNotFound(f"there is no task {path} here: {error}") from error
    if not isinstance(found, compat.base.Task) or not getattr(found.get_backend(), "runs_on_kagzi", False):
        raise NotATask(f"{path} is not a task that runs on Kagzi, but a {type(found).__name__}; nothing was called")
    return found


def _is_of_an_app(module: str) -> bool:
    return any(f"{module}.".startswith(f"{config.name}.") for config in apps.get_app_configs())


class Call:
    """One run: a task, and what it is called with."""

    def __init__(self, path: str, args: list[Any], kwargs: dict[str, Any], terms: Terms) -> None:
        self.path = path
        self.args = args
        self.kwargs = kwargs
        self.terms = terms

    async def run(self, codec: Codec | None) -> Any:
        """The task as one step, looked for again for a quarter of an hour if this worker does not know it."""
        step: Step[[], Any] = Step(
            self._body_of_coroutine if self.terms.coroutine else self._body,
            name=self.path,
            retry=self.terms.policy(),
            timeout=self.terms.timeout,
            codec=codec,
        )
        for wait in _WAITS:
            try:
                return await step()
            except TaskNotFound as error:
                logger.warning("%s; looking again in %d s, in any worker", error, wait)
                await asyncio.sleep(wait)
        return await step()

    async def run_durably(self, app: Kagzi) -> Any:
        """The task as a workflow, part of this run."""
        task = find_task(self.path)
        args = [self._context(task, current().run_id, 1), *self.args] if task.takes_context else self.args
        workflow: Workflow[..., Any] = Workflow(app, task.func, name=self.path, codec=app.codec)
        execution = execution_of(self.path)
        assert execution is not None
        execution.app = None  # a task is declared with no app, so the steps that it calls may be of any
        return compat.normalize_json(await workflow(*args, **self.kwargs))

    def _body(self) -> Any:
        task, result, args = self._begin()
        sender = type(task.get_backend())
        compat.signals.task_started.send_robust(sender=sender, task_result=result)
        try:
            value = compat.normalize_json(task.call(*args, **self.kwargs))
        except Exception as error:
            if self._is_last(error):
                self._end(result, "FAILED")
                compat.signals.task_finished.send_robust(sender=sender, task_result=result)
            raise
        self._end(result, "SUCCESSFUL", value)
        compat.signals.task_finished.send_robust(sender=sender, task_result=result)
        return value

    async def _body_of_coroutine(self) -> Any:
        # The ORM of `async def` code has a thread of its own, whose connections nobody else looks after.
        looked_after: Callable[[], Coroutine[Any, Any, None]] = sync_to_async(close_old_connections)
        await looked_after()
        try:
            task, result, args = self._begin()
            sender = type(task.get_backend())
            await compat.signals.task_started.asend_robust(sender=sender, task_result=result)
            try:
                value = compat.normalize_json(await task.acall(*args, **self.kwargs))
            except Exception as error:
                if self._is_last(error):
                    self._end(result, "FAILED")
                    await compat.signals.task_finished.asend_robust(sender=sender, task_result=result)
                raise
            self._end(result, "SUCCESSFUL", value)
            await compat.signals.task_finished.asend_robust(sender=sender, task_result=result)
            return value
        finally:
            await looked_after()

    def _begin(self) -> tuple[Any, Any, list[Any]]:
        task = find_task(self.path)
        context = self._context(task, current().run_id, attempt())
        return task, context.task_result, [context, *self.args] if task.takes_context else self.args

    def _is_last(self, error: Exception) -> bool:
        return next_attempt(self.terms.policy(), error, attempt(), 0.5) is None

    def _context(self, task: Any, run_id: str, attempt: int) -> Any:
        now = timezone.now() if not self.terms.durable else self.terms.enqueued_at
        result = compat.base.TaskResult(
            task=task,
            id=run_id,
            status=compat.base.TaskResultStatus.RUNNING,
            enqueued_at=self.terms.enqueued_at,
            started_at=now,
            last_attempted_at=now,
            finished_at=None,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.terms.backend,
            errors=[],
            worker_ids=[_worker_id()] * attempt,
        )
        return compat.base.TaskContext(task_result=result)

    @staticmethod
    def _end(result: Any, status: str, value: Any = None) -> None:
        for name, new in (("status", status), ("finished_at", timezone.now()), ("_return_value", value)):
            object.__setattr__(result, name, compat.base.TaskResultStatus(new) if name == "status" else new)


def _worker_id() -> str:
    step = current_step.get(None)
    held = None if step is None or step.held_by is None else step.held_by()
    return "kagzi" if held is None else str(held.about()["worker_id"])


def _given_to_kagzi() -> bool:
    if compat.FRAMEWORK is None:
        return False
    said = getattr(settings, "TASKS", None)
    backends = [params.get("BACKEND", "") for params in said.values()] if isinstance(said, dict) else []
    return any(_runs_on_kagzi(backend) for backend in backends)


def _runs_on_kagzi(backend: str) -> bool:
    try:
        return bool(getattr(import_string(backend), "runs_on_kagzi", False))
    except ImportError:  # Django says so when it makes it
        return False
