"""Coroutines that wait for nothing, run without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

V = TypeVar("V")


def drive(coroutine: Coroutine[Any, Any, V]) -> V:
    """Runs a coroutine that waits for nothing, without an event loop, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        answer: V = end.value
        return answer
    coroutine.close()
    raise RuntimeError("it has to wait, which only an event loop can do")
