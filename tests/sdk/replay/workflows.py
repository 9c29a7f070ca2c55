"""Running one workflow on a host to its end, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kagzi.core.failure import Failure
from tests.sdk.replay.host import Host, describe, step

Workflow = Callable[[], Coroutine[Any, Any, Any]]


def finish(workflow: Workflow, seed: int = 0, **options: Any) -> tuple[Any, Host]:
    host = Host(workflow, seed=seed, **options)
    return describe(host.live()), host


def result(workflow: Workflow, seed: int = 0) -> Any:
    outcome, _ = finish(workflow, seed)
    assert outcome[0] == "completed", outcome
    return outcome[1].decode()


def failure(workflow: Workflow) -> Failure:
    outcome = Host(workflow).live()
    assert outcome.failure is not None
    return outcome.failure


def value(number: Any = 1) -> Callable[[], Any]:
    return lambda: number


async def charge() -> None:
    await step("charge", value())
