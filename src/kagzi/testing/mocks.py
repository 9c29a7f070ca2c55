"""Replacing the body of a step for a test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import Mock

from kagzi.errors import InvalidRequest, NonRetryable
from kagzi.sdk.definitions import Step

_NOT_GIVEN: Final[Any] = object()


class MockExhausted(NonRetryable):
    """A mock was called more often than its `side_effect` has entries."""


class StepMock:
    """What stands in for a step's body, from when it is made to the end of its `with` block or of the test.

    `calls` lists the arguments of each call; `call_count`, `assert_called_once_with(...)` and what else is known of
    `unittest.mock.Mock` work, too.
    """

    def __init__(
        self, step: Step[Any, Any], return_value: Any, side_effect: Any, before_exit: Callable[[], object]
    ) -> None:
        if not isinstance(step, Step):
            raise InvalidRequest(f"mock() replaces the body of a step, as made by @app.step, not {step!r:.100}")
        if step._app is not None and step._app.find_step(step.name) is not step:
            raise InvalidRequest(
                f"mock() replaces the body of a step wherever it is called, and {step!r} with .options(...) is a copy "
                "for one call; give the step itself"
            )
        if (return_value is _NOT_GIVEN) == (side_effect is _NOT_GIVEN):
            raise InvalidRequest("mock() takes `return_value=` or `side_effect=`, and one of the two is needed")
        given = {"return_value": return_value} if side_effect is _NOT_GIVEN else {"side_effect": side_effect}
        self._mock = Mock(name=step.name, **given)
        self._before_exit = before_exit
        self._step = step
        self._body: Callable[..., Any] | None = step.fn
        self._place = step.body  # a mock needs neither a transaction nor a process
        step.fn, step.body = _like(step.fn, self._mock), None

    @property
    def calls(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(call.args, dict(call.kwargs)) for call in self._mock.call_args_list]

    def undo(self) -> None:
        """Puts the body back. A second time does nothing."""
        if self._body is not None:
            self._step.fn, self._step.body, self._body = self._body, self._place, None

    def __enter__(self) -> StepMock:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._before_exit()
        finally:
            self.undo()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mock, name)


def mock_step(
    step: Step[Any, Any],
    before_exit: Callable[[], object],
    *,
    return_value: Any = _NOT_GIVEN,
    side_effect: Any = _NOT_GIVEN,
) -> StepMock:
    return StepMock(step, return_value, side_effect, before_exit)


def _like(body: Callable[..., Any], mock: Mock) -> Callable[..., Any]:
    """Calls the mock as this body is called: a worker awaits the one and runs the other on a thread."""
    if not inspect.iscoroutinefunction(body):
        return lambda *args, **kwargs: _call(mock, args, kwargs)

    async def mocked(*args: Any, **kwargs: Any) -> Any:
        result = _call(mock, args, kwargs)
        return await result if inspect.isawaitable(result) else result

    return mocked


def _call(mock: Mock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return mock(*args, **kwargs)
    except StopIteration:  # which no coroutine and no thread can pass on
        raise MockExhausted(
            f"the mock of step {mock._mock_name} was called {mock.call_count} times, and side_effect has "
            f"{mock.call_count - 1} entries; each attempt of a step is a call"
        ) from None
