"""The nouns of a store and what can be asked of each, read from the contract.

For code that stands between a store and its callers: to measure their calls, watch them, or lose them in a test.

The name of such a call is `noun.verb`, and the verb alone for those of `work`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, get_type_hints

from kagzi.store.protocol.store import Store

# By noun, the methods that ask the database something.
NOUNS: Final = {
    noun: frozenset(name for name, method in vars(protocol).items() if inspect.iscoroutinefunction(method))
    for noun, protocol in (
        (name, get_type_hints(member.fget)["return"])
        for name, member in vars(Store).items()
        if isinstance(member, property)
    )
    if getattr(protocol, "_is_protocol", False)
}


def call_name(noun: str, verb: str) -> str:
    return verb if noun == "work" else f"{noun}.{verb}"


def method_named(store: Any, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Returns the method of this store that a call of this name is about."""
    noun, _, verb = name.rpartition(".")
    method: Callable[..., Coroutine[Any, Any, Any]] = getattr(getattr(store, noun or "work"), verb)
    return method
