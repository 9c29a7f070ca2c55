"""Changes that a program makes where it has the database itself leave entries in the audit log. Through a server, the
server writes them; commands name their user (`cli/audited.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from kagzi.core.audit import OK, AuditEntry
from kagzi.core.flow import Scope
from kagzi.engine.local import LocalEngine
from kagzi.errors import KagziError
from kagzi.owners import user_name

T = TypeVar("T")

About = Callable[..., tuple[str | None, str]]  # the namespace and the target of a call


def _asked(noun: str, field: str) -> About:
    """Of a call with a request that names both."""
    return lambda request: (request.namespace, f"{noun} {getattr(request, field)}")


def _named(noun: str) -> About:
    """Of a call that begins with the namespace and the name."""
    return lambda namespace, name, *_, **__: (namespace, f"{noun} {name}")


def _limit(namespace: str, scope: Scope, name: str, **_: Any) -> tuple[str, str]:
    return namespace, f"{scope.value} {name or namespace}"


_CHANGES: Final[dict[str, dict[str, About]]] = {
    "workflows": {
        "cancel": _asked("run", "run_id"),
        "terminate": _asked("run", "run_id"),
        "repeat": _asked("run", "of_run_id"),
        "wake": _named("run"),
    },
    "jobs": {"start": _asked("job", "job_id"), "cancel": _named("job"), "delete_run": _named("run")},
    "schedules": {
        "create": _asked("schedule", "schedule_id"),
        "update": _asked("schedule", "schedule_id"),
        "delete": _named("schedule"),
        "trigger": _named("schedule"),
        "backfill": _named("schedule"),
    },
    "limits": dict.fromkeys(("set", "clear", "pause", "resume"), _limit),
    "versions": dict.fromkeys(("set_default", "move", "move_checked"), _named("workflow")),
    "admin": {"drain_worker": lambda worker_id, namespace=None: (namespace, f"worker {worker_id}")},
}
CHANGES: Final = frozenset((service, name) for service, changes in _CHANGES.items() for name in changes)


def audited(engine: LocalEngine, name: str, service: T) -> T:
    """Returns the service, each change of which is written down."""
    changes = _CHANGES.get(name)
    return service if changes is None else cast(T, _Audited(engine, service, name, changes))


class _Audited:
    def __init__(self, engine: LocalEngine, service: Any, name: str, changes: dict[str, About]) -> None:
        self._engine = engine
        self._service = service
        self._name = name
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Awaitable[Any]] = getattr(self._service, name)
        about = self._changes.get(name)
        if about is None:
            return method

        async def change(*args: Any, **more: Any) -> Any:
            if more.get("dry_run"):
                return await method(*args, **more)
            result = OK
            try:
                return await method(*args, **more)
            except KagziError as error:
                result = error.code
                raise
            finally:
                namespace, target = about(*args, **more)
                self._engine.audit.record(
                    AuditEntry(
                        actor=f"app:{user_name()}",
                        action=f"{self._name} {name}",
                        namespace=namespace,
                        target=target,
                        request_id="",
                        peer="",
                        result=result,
                    )
                )

        return change
