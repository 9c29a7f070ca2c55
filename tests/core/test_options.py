"""Options that do not exist are refused with those that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kagzi
from kagzi import Kagzi, Retry
from kagzi.testing import run_virtually

app = Kagzi("memory://")


@app.step
async def step(number: int) -> int:
    return number


@app.workflow
async def workflow() -> None: ...


@pytest.mark.parametrize(
    ("function", "unknown", "advice"),
    [
        (app.workflow, "rate_limit", "did you mean rate?"),
        (app.workflow, "cron", "did you mean schedule?"),
        (app.workflow, "timeuot", "did you mean timeout?"),
        (app.workflow, "task_queue", "did you mean queue?"),
        (app.workflow, "max_retries", "did you mean retry?"),
        (app.step, "retries", "did you mean retry?"),
        (app.step, "quue", "There are: name, retry, timeout"),
        (step.options, "attempts", "did you mean retry?"),
        (workflow.options, "idempotency_key", "did you mean id?"),
        (workflow.options, "eta", "did you mean start_at?"),
        (Kagzi, "database_url", "did you mean url?"),
        (Kagzi, "api_key", "did you mean key?"),
        (app.worker, "slots", "did you mean concurrency?"),
        (app.worker, "processes", "app.run_worker(processes=4)"),
        (app.run_worker, "queue", "did you mean queues?"),
        (app.runs, "state", "did you mean status?"),
        (Retry, "max_attempts", "did you mean attempts?"),
        (Retry.fixed, "exceptions", "did you mean retry_on?"),
        (Retry.exponential, "max_interval", "did you mean cap?"),
        (kagzi.map, "max_concurrency", "did you mean limit?"),
        (kagzi.parallel, "onerror", "did you mean on_error?"),
        (kagzi.race, "frist", "did you mean first?"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_an_unknown_option_is_refused_with_those_that_exist(
    function: Callable[..., Any], unknown: str, advice: str
) -> None:
    with pytest.raises(TypeError) as caught:
        function(**{unknown: 1})
    message = str(caught.value)
    assert f"{function.__name__}() has no option {unknown!r}" in message
    assert advice in message
    assert ". There are: " in message or "? There are: " in message


def test_the_test_kit_does_so_too() -> None:
    with pytest.raises(TypeError, match=r"run_virtually\(\) has no option 'sed'; did you mean seed\?"):
        run_virtually(app, workflow.run, sed=3)  # type: ignore[call-arg]


def test_other_mistakes_are_told_as_ever() -> None:
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        step.options("key")  # type: ignore[misc]
