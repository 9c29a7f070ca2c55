# ruff: noqa: E402  # Django is configured before its models are imported.
"""Kagzi in a Django project: tasks, transactions and settings, in Django's own database and with a server."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

pytest.importorskip("django")
from tests.contrib.django_project import configure

configure()

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone

from kagzi import Kagzi, Retry
from kagzi.contrib.django import compat, get_app, staff
from kagzi.contrib.django.apps import _make_tables
from kagzi.contrib.django.checks import check_settings
from kagzi.contrib.django.conf import database_url
from kagzi.contrib.django.tasks import NAME, task_workflow
from kagzi.core.run import RunStatus
from kagzi.errors import Conflict, InvalidRequest, NotFound, WorkflowFailed
from tests.contrib.django_project import tasks
from tests.contrib.django_project.models import Note
from tests.scenarios.conftest import served

READY, RUNNING, FAILED, SUCCESSFUL = map(compat.base.TaskResultStatus, ("READY", "RUNNING", "FAILED", "SUCCESSFUL"))


class Shop:
    """The project at a home, with a worker beside the test."""

    def __init__(self, app: Kagzi, alias: str) -> None:
        self.app = app
        self.alias = alias  # of the database that Django uses

    def ended(self, result: Any) -> Any:
        """The result when the task has ended, however it did."""
        try:
            self.app.handle(result.id).result_sync(timeout=60)
        except WorkflowFailed:
            pass
        result.refresh()
        return result


@contextmanager
def server(url: str) -> Iterator[str]:
    """A server in a thread of its own, because the test cannot await."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    hosted = served(url)
    try:
        yield asyncio.run_coroutine_threadsafe(hosted.__aenter__(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(hosted.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def use_file(path: Path) -> None:
    connections["default"].close()
    connections["default"].settings_dict["NAME"] = str(path)


@contextmanager
def placed(home: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """What KAGZI says at a home, and the alias of Django's database."""
    use_file(directory / "shop.db")
    if home == "postgres":
        there = urlsplit(request.getfixturevalue("postgres_database"))
        said = {"NAME": there.path[1:], "USER": there.username, "HOST": there.hostname, "PORT": str(there.port)}
        connections["postgres"].settings_dict.update(said)
        yield {"database": "postgres"}, "postgres"
    elif home == "grpc":
        with server(f"sqlite:///{directory / 'kagzi.db'}") as url:
            yield {"url": url}, "default"
    else:
        yield {}, "default"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "grpc"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with placed(request.param, request, tmp_path) as (said, alias), override_settings(KAGZI=said):
        app = get_app()
        with connections[alias].schema_editor() as editor:
            editor.create_model(Note)
        try:
            with app, app.worker_sync(queues=["default", "mail"], threads=1):
                yield Shop(app, alias)
        finally:
            with connections[alias].schema_editor() as editor:
                editor.delete_model(Note)
            connections.close_all()


def test_tasks_have_results(shop: Shop) -> None:
    result = tasks.add.enqueue(1, right=2)
    assert (result.status, result.args, result.kwargs, result.attempts) == (READY, [1], {"right": 2}, 0)
    shop.ended(result)
    assert (result.status, result.return_value, result.attempts, result.errors) == (SUCCESSFUL, 3, 1, [])
    assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
    found = tasks.add.get_result(result.id)
    assert (found.return_value, found.args, found.kwargs, found.task.func) == (3, [1], {"right": 2}, tasks.add.func)
    with pytest.raises(compat.exceptions.TaskResultMismatch):
        tasks.greet.get_result(result.id)
    assert shop.ended(tasks.greet.enqueue("ann")).return_value == "hello ann"
    described = shop.ended(tasks.describe.enqueue("word"))
    assert described.return_value == ["word", 1, described.id]
    (run,) = [run for run in shop.app.runs_sync(workflow=NAME, queue="mail").items]
    assert (run.priority, run.tags) == (105, {"task": tasks.greet.module_path})


def test_attempts_and_errors_are_told(shop: Shop) -> None:
    result = shop.ended(tasks.flaky.enqueue(3))
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, "done", 3)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert "ValueError: attempt 1" in result.errors[0].traceback
    failed = shop.ended(tasks.flaky.enqueue(9))
    assert (failed.status, failed.attempts, len(failed.errors), failed.is_finished) == (FAILED, 3, 3, True)
    with pytest.raises(ValueError, match="failed"):
        _ = failed.return_value
    once = shop.ended(tasks.flaky.using(retry=Retry.none).enqueue(2))
    assert (once.status, once.attempts) == (FAILED, 1)
    assert shop.ended(tasks.strange.enqueue()).errors[0].exception_class is TypeError  # not JSON


def test_tasks_are_enqueued_with_the_transaction(shop: Shop) -> None:
    with transaction.atomic(using=shop.alias):
        Note.objects.using(shop.alias).create(text="rolled back")
        lost = tasks.add.enqueue(1, 1)
        transaction.set_rollback(True, using=shop.alias)
    with pytest.raises(compat.exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(lost.id)
    with transaction.atomic(using=shop.alias):
        Note.objects.using(shop.alias).create(text="kept")
        kept, again = tasks.add.enqueue(2, 2), tasks.add.enqueue(3, 3)
        with pytest.raises(compat.exceptions.TaskResultDoesNotExist):
            tasks.add.get_result(kept.id)
    assert (shop.ended(kept).return_value, shop.ended(again).return_value) == (4, 6)
    assert [note.text for note in Note.objects.using(shop.alias).all()] == ["kept"]


def test_a_key_is_enqueued_once(shop: Shop) -> None:
    once = tasks.add.using(key="sum-1")
    first = once.enqueue(1, 2)
    assert once.enqueue(1, 2).id == first.id
    assert once.using(timeout="9s").enqueue(1, 2).id == first.id  # on other terms, as after a deploy
    with transaction.atomic(using=shop.alias):
        second = once.enqueue(1, 2)
    assert second.id == first.id
    with pytest.raises(Conflict):
        once.enqueue(1, 3)


def test_durable_tasks_are_workflows(shop: Shop) -> None:
    tasks.called.clear()
    for task in (tasks.patient, tasks.plain_patient):
        assert shop.ended(task.enqueue(3)).return_value == 12
    assert tasks.called == [3, 6, 3, 6]


@pytest.mark.parametrize(
    "path",
    [
        f"{tasks.__name__}.not_a_task",
        f"{tasks.__name__}.add.func",
        f"{tasks.__name__}.called.append",
        "builtins.print",
        "os.system",
        "this.s",
    ],
)
def test_only_tasks_are_called(path: str, quick_shop: Shop) -> None:
    tasks.called.clear()
    run = task_workflow(quick_shop.app).start_sync(path, ["x"], {})
    if path.endswith((".func", ".append", "this.s")):  # no module that is ours: it may be deployed later
        assert poll(lambda: "TaskNotFound" in str(run.steps_sync())), run.steps_sync()
        assert run.status_sync() in (RunStatus.SLEEPING, RunStatus.RUNNING)
    else:
        with pytest.raises(WorkflowFailed, match="not a task"):
            run.result_sync(timeout=60)
    assert tasks.called == []
    assert "this" not in sys.modules  # which says something when it is imported


@pytest.fixture
def quick_shop(tmp_path: Path) -> Iterator[Shop]:
    """In memory, as a project's own tests have it."""
    use_file(Path(":memory:"))
    with override_settings(KAGZI={}):
        app = get_app()
        assert app.url == "memory://"
        with app, app.worker_sync(queues=["default", "mail"], threads=1):
            yield Shop(app, "default")
    connections.close_all()


def poll(look: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 60
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_later_and_elsewhere(quick_shop: Shop) -> None:
    soon = timezone.now() + timedelta(hours=1)
    result = tasks.add.using(run_after=soon, priority=-7, queue_name="mail").enqueue(1, 2)
    found = tasks.add.get_result(result.id)
    assert (found.status, found.task.priority, found.task.queue_name, found.task.run_after) == (READY, -7, "mail", soon)
    with pytest.raises(ValueError, match="not finished"):
        _ = found.return_value
    for unknown in ("nothing", "01a1ed07-8fb7-7cdd-9e24-69cf7f4f47e3", "x" * 300, ""):
        with pytest.raises(compat.exceptions.TaskResultDoesNotExist):
            tasks.add.get_result(unknown)
    quick_shop.app.handle(result.id).cancel_sync()
    result.refresh()
    assert (result.status, len(result.errors)) == (FAILED, 1)


def test_a_task_in_whose_place_workers_would_find_another_is_refused(quick_shop: Shop) -> None:
    def add(left: int, right: int) -> int:
        return left - right

    add.__module__, add.__qualname__ = tasks.add.func.__module__, "add"
    with pytest.raises(compat.InvalidTask, match="another task"):
        dataclasses.replace(tasks.add, func=add).enqueue(1, 2)


def test_what_cannot_be_enqueued_says_so(quick_shop: Shop) -> None:
    for wrong, words in (
        ({"retry": 5}, "kagzi.Retry"),
        ({"retry": Retry(when=bool)}, "when"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": 0}, "longer than 0"),
        ({"key": "x" * 300}, "key"),
        ({"durable": "yes"}, "durable"),
        ({"queue_name": "unknown"}, "unknown"),
        ({"priority": 101}, "priority"),
    ):
        with pytest.raises(compat.InvalidTask, match=words):
            tasks.add.using(**wrong)
    with pytest.raises(TypeError, match="retries"):
        tasks.add.using(retries=5)
    with pytest.raises(compat.InvalidTask, match="cannot find this task"):
        tasks.renamed.enqueue(1)
    with pytest.raises(TypeError):
        tasks.add.enqueue(object(), 1)
    assert quick_shop.app.runs_sync().items == ()


def test_in_an_event_loop(quick_shop: Shop) -> None:
    async def view() -> Any:
        with pytest.raises(InvalidRequest, match="aenqueue"):
            tasks.add.enqueue(1, 2)
        result = await tasks.add.aenqueue(1, 2)
        await tasks.add.aget_result(result.id)
        return result

    assert quick_shop.ended(asyncio.run(view())).return_value == 3


def test_django_is_told(quick_shop: Shop) -> None:
    told: list[tuple[str, str]] = []
    signals = compat.signals

    def hear(name: str) -> Callable[..., None]:
        return lambda task_result, **_: told.append((name, str(task_result.status)))

    receivers = [(getattr(signals, f"task_{name}"), hear(name)) for name in ("enqueued", "started", "finished")]
    for signal, receiver in receivers:
        signal.connect(receiver)
    try:
        for result in (tasks.flaky.enqueue(2), tasks.greet.enqueue("ann")):
            quick_shop.ended(result)
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)
    assert sorted(told) == sorted(
        [("enqueued", "READY")] * 2 + [("started", "RUNNING")] * 3 + [("finished", "SUCCESSFUL")] * 2
    )


def test_def_steps_leave_no_connections(tmp_path: Path) -> None:
    """With CONN_MAX_AGE = 0 a connection lasts for one step, in the one thread of this worker."""
    use_file(tmp_path / "shop.db")
    with override_settings(KAGZI={}):
        app = get_app()
        with connections["default"].schema_editor() as editor:
            editor.create_model(Note)
        with app, app.worker_sync(threads=1):
            assert [Shop(app, "").ended(tasks.note.enqueue("default", "x")).return_value for _ in range(2)] == [
                True,
                True,
            ]
    connections.close_all()


def test_migrate_makes_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use_file(tmp_path / "shop.db")
    with override_settings(KAGZI={}):
        _make_tables(using="default")
        assert "Kagzi's tables" in capsys.readouterr().out
        _make_tables(using="default")
        assert capsys.readouterr().out == ""
    with override_settings(KAGZI={"migrate": False}):
        use_file(tmp_path / "other.db")
        _make_tables(using="default")
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    ("said", "id", "words"),
    [
        ("shop", "kagzi.E001", "must be a dict"),
        ({"ap": "shop:app"}, "kagzi.E001", "has no 'ap'"),
        ({"queues": "default"}, "kagzi.E002", "list of names"),
        ({"database": "nowhere"}, "kagzi.E002", "no 'nowhere' in DATABASES"),
        ({"url": "shop.db"}, "kagzi.E002", "must be a URL"),
        ({"migrate": "yes"}, "kagzi.E002", "True or False"),
        ({"app": "tests.contrib.nothing:app"}, "kagzi.E003", "tests.contrib.nothing"),
        ({"app": f"{tasks.__name__}:called"}, "kagzi.E003", "not a Kagzi app"),
    ],
)
def test_wrong_settings_are_checks(said: Any, id: str, words: str) -> None:
    with override_settings(KAGZI=said):
        (error,) = check_settings()
        assert error.id == id
        assert words in error.msg


def test_wrong_options_of_the_backend_are_checks() -> None:
    backend = {"BACKEND": "kagzi.contrib.django.backend.KagziBackend"}
    for options, words in (
        ({"retries": 3}, "no option 'retries'"),
        ({"retry": 3}, "kagzi.Retry"),
        ({"transaction": "maybe"}, "on_commit"),
    ):
        with override_settings(TASKS={"default": {**backend, "OPTIONS": options}}):
            (error,) = compat.task_backends["default"].check()
            assert (error.id, words in error.msg) == ("kagzi.E011", True)
    with override_settings(TASKS={"default": backend}):
        assert list(compat.task_backends["default"].check()) == []


def test_the_app_of_the_settings_is_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_file(tmp_path / "shop.db")
    try:
        with override_settings(KAGZI={"app": f"{tasks.__name__}:app", "url": "sqlite:///elsewhere.db"}):
            assert get_app() is tasks.app
            assert get_app().url == "memory://"  # code comes first
        with override_settings(KAGZI={"namespace": "shop"}):
            assert get_app().url == f"sqlite:///{tmp_path}/shop.db"
            assert get_app().namespace == "shop"
        monkeypatch.setenv("KAGZI_URL", "postgresql://db/shop")
        with override_settings(KAGZI={}):
            assert get_app().url is None  # the environment decides
    finally:
        connections.close_all()


def test_django_databases_as_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    said = connections["postgres"].settings_dict
    for changes, url in (
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "my shop", "USER": "a@b", "PASSWORD": "p:/w"}, "postgresql://a%40b:p%3A%2Fw@/my%20shop"),
        ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "u"}, "postgresql://u@db:5433/shop"),
        ({"NAME": "shop", "HOST": "::1"}, "postgresql://[::1]/shop"),
        ({"NAME": "shop", "HOST": "/run/pg", "PORT": "5433"}, "postgresql:///shop?host=%2Frun%2Fpg&port=5433"),
        (
            {"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://db/shop?sslmode=require",
        ),
    ):
        with monkeypatch.context() as patch:
            for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT"):
                patch.setitem(said, name, changes.get(name, ""))
            patch.setitem(said, "OPTIONS", changes.get("OPTIONS", {}))
            assert database_url("postgres") == url
    with monkeypatch.context() as patch:
        patch.setitem(said, "OPTIONS", {"service": "shop"})
        with pytest.raises(ImproperlyConfigured, match=r'KAGZI = \{"url"'):
            database_url("postgres")
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"], "vendor", "mysql")
        with pytest.raises(ImproperlyConfigured, match="cannot keep runs"):
            database_url("default")


def test_another_database_is_never_joined(tmp_path: Path) -> None:
    """Runs live elsewhere: tasks wait for the commit, and a start that has to join is refused."""
    use_file(tmp_path / "shop.db")
    with override_settings(KAGZI={"url": f"sqlite:///{tmp_path / 'kagzi.db'}"}):
        app = get_app()
        with app:
            with transaction.atomic():
                late = tasks.add.enqueue(1, 2)
                with pytest.raises(NotFound):
                    app.handle(late.id).get_sync()
            assert app.handle(late.id).get_sync().input[0] == tasks.add.module_path
            only = {"BACKEND": "kagzi.contrib.django.backend.KagziBackend", "OPTIONS": {"transaction": "join"}}
            with override_settings(TASKS={"default": only}, KAGZI={"url": f"sqlite:///{tmp_path / 'kagzi.db'}"}):
                with transaction.atomic(), pytest.raises(InvalidRequest, match="another database"):
                    tasks.add.enqueue(1, 2)
    connections.close_all()


class Users:
    """An authentication backend without a table."""

    def get_user(self, key: str) -> User | None:
        return USERS.get(int(key))

    async def aget_user(self, key: str) -> User | None:
        return self.get_user(key)


USERS = {
    1: User(pk=1, username="ada", is_staff=True),
    2: User(pk=2, username="bob", is_staff=False),
    3: User(pk=3, username="eve", is_staff=True, is_active=False),
}


def logged_in(user: User) -> str:
    """Returns the cookie of a session of Django's."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)


def test_the_dashboard_lets_in_the_staff_of_the_project() -> None:
    sessions = "django.contrib.sessions.backends.signed_cookies"
    with override_settings(
        KAGZI={"url": "memory://"}, SESSION_ENGINE=sessions, AUTHENTICATION_BACKENDS=[f"{__name__}.Users"]
    ):
        cookies = {user.username: logged_in(user) for user in USERS.values()}
        forged = cookies["bob"][:-4] + "AAAA"

        async def ask() -> dict[str, int]:
            async with get_app() as app:
                transport = httpx.ASGITransport(app.asgi(auth=staff), client=("203.0.113.9", 1))
                answers = {}
                for name, cookie in {**cookies, "forged": forged, "nobody": ""}.items():
                    headers = {"cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"}
                    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as http:
                        answers[name] = (await http.get("/", headers=headers)).status_code
                return answers

        assert asyncio.run(ask()) == {"ada": 200, "bob": 403, "eve": 403, "forged": 403, "nobody": 403}
