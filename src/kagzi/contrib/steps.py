"""What adapters for agents share: a call that a framework makes becomes a recorded step of the run.

Frameworks call models and tools in tasks of their own, whose names are theirs to change. So these steps are known by
name and key from the root of the run, and their bodies see the context variables of the code that calls.
"""

from __future__ import annotations

import json
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, Future
from hashlib import sha256
from typing import Any, Final, TypedDict, cast
from weakref import WeakKeyDictionary

from kagzi.clock import Clock
from kagzi.core.duration import Duration
from kagzi.core.limits import NAME_CHARACTERS
from kagzi.core.retry import Retry
from kagzi.errors import InvalidRequest, NonRetryable
from kagzi.sdk.ambient import current, payload_codec
from kagzi.sdk.definitions import Step, run_step
from kagzi.sdk.replay.loop import WorkflowLoop
from kagzi.sdk.replay.rooted import rooted
from kagzi.sdk.signals import wait_signal
from kagzi.sdk.values import set_value

_OPTIONS: Final = frozenset({"retry", "timeout"})
_MOST_SHOWN: Final = 2_000  # characters of the arguments of a tool that somebody is asked about
# What each run asks at the moment, by the signal that answers it.
_questions: WeakKeyDictionary[WorkflowLoop, dict[str, dict[str, str]]] = WeakKeyDictionary()


class StepOptions(TypedDict, total=False):
    """How a call is made as a step: `{"retry": Retry(attempts=3), "timeout": "30s"}`."""

    retry: Retry
    timeout: Duration


def check_options(options: object, what: str) -> StepOptions:
    """Refuses options that a step does not have."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidRequest(f'{what} must be step options such as {{"timeout": "30s"}}, not {options!r:.100}')
    if unknown := sorted(set(options) - _OPTIONS):
        raise InvalidRequest(f"{what} has no option {unknown[0]!r}; there are retry and timeout")
    checked = cast("StepOptions", dict(options))
    Step(check_options, name="checked", retry=checked.get("retry"), timeout=checked.get("timeout"))
    return checked


def in_workflow() -> bool:
    """Whether this is workflow code. Bodies of steps run elsewhere."""
    return isinstance(_get_running_loop(), WorkflowLoop)


def short(name: str, key: str | None = None) -> tuple[str, str | None]:
    """Returns a name and a key that fit together into the identity of a step. What is too long ends in its digest."""
    name = name if len(name) <= 150 else f"{name[:120]}~{_digest(name)}"
    if key is not None and len(name) + len(key) + 2 > NAME_CHARACTERS:
        key = f"{key[:40]}~{_digest(key)}"
    return name, key or None


async def record(
    name: str, body: Callable[[], Awaitable[Any]], call: Any, *, key: str | None = None, options: StepOptions
) -> Any:
    """Runs `body` as a step of this name, known by its name and key in the whole run. `call` is what it is about, to be
    shown and compared; what `body` returns is plain JSON data."""
    execution = current(name)
    if execution is None:
        return await body()
    name, key = short(name, key)

    async def unit(call: Any) -> Any:  # noqa: ARG001
        return await body()

    step: Step[[Any], Any] = Step(
        unit,
        name=name,
        retry=options.get("retry"),
        timeout=options.get("timeout"),
        codec=payload_codec(execution),
    )
    return await run_step(name, step, call, key=key, rooted=True, context="caller")


def plain(make: Callable[[], Any], what: str) -> Any:
    """Makes plain JSON data of what a call has returned. That it cannot be done is final: another call would be paid
    for, and end in the same way."""
    try:
        return make()
    except Exception as error:
        raise NonRetryable(f"what {what} returned cannot be recorded: {error}") from error


class Inline(Executor):
    """Runs what it is given here and now."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def on_virtual_time() -> bool:
    """Whether the running loop has a clock of its own, as in tests."""
    return isinstance(getattr(_get_running_loop(), "clock", None), Clock)


async def ask(signal: str, tool: str, arguments: str, answer: Any, *, timeout: Duration | None, default: Any) -> Any:
    """Waits for the signal that says what becomes of a call, and shows meanwhile in the value `approvals` what the run
    asks: which tool, with which arguments, and which signal answers. A name that is too long for a signal ends in its
    digest."""
    loop = _get_running_loop()
    assert isinstance(loop, WorkflowLoop)
    if len(signal) > NAME_CHARACTERS:
        signal = f"{signal[:120]}~{_digest(signal)}"
    questions = _questions.setdefault(loop, {})
    questions[signal] = {"signal": signal, "tool": tool, "arguments": arguments[:_MOST_SHOWN]}
    set_value("approvals", list(questions.values()))
    try:
        with rooted(signal):
            if timeout is None:
                return await wait_signal(signal, answer)
            return await wait_signal(signal, answer, timeout=timeout, default=default)
    finally:  # also when the workflow has given up waiting
        questions.pop(signal, None)
        set_value("approvals", list(questions.values()))


def as_text(arguments: object) -> str:
    """Returns the arguments of a tool as people read them."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False, default=repr)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
