"""Starts by name, which know no more of a workflow than that: commands, HTTP, the dashboard, other languages.

Such a start takes what the code of the workflow says of its runs, as a start in Python does: queue, what handles a
failure, timeout, limits and whose share it takes of them, debouncing. What the start says itself comes first. Its input
has to fit what the worker says that the workflow takes. Here this is decided, for every door.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from kagzi.api.operations import StartDebounce, StartRun
from kagzi.core.inputs import InputReader, Misfit, input_reader
from kagzi.core.limits import check_name
from kagzi.core.versions import MADE_BY_CODE, Resolved
from kagzi.errors import InvalidRequest

READ_AT_ONCE: Final = 4096  # bytes of an input; a larger one is read on a thread
_SAY_LIMIT: Final = "Say it: limit_key, in a command --limit-key"
_SAY_DEBOUNCE: Final = "Say debounce with its key, or an id for a run of its own"


def with_defaults(start: StartRun, resolved: Resolved) -> StartRun:
    """Returns a start as its workflow says; InvalidRequest if its input does not fit."""
    defaults = resolved.defaults
    arguments = _arguments(start, resolved)
    changes: dict[str, Any] = {"version": resolved.version, "by_name": False}
    if start.other_queue:
        changes |= {"task_queue": defaults.queue or start.task_queue, "other_queue": False}
    if start.on_failure is None and defaults.on_failure is not None:
        changes |= {"on_failure": defaults.on_failure, "on_failure_queue": defaults.on_failure_queue}
    if start.timeout is None and start.deadline_at is None:
        changes["timeout"] = defaults.timeout
    if start.limit_name is None:
        changes["limit_name"] = defaults.limit_name
    if start.limit_key is None and defaults.limit_key is not None:
        whose = f"the limits of {start.workflow_type}"
        changes["limit_key"] = _key(defaults.limit_key, whose, arguments, _SAY_LIMIT)
    alone = start.external_id is None and start.signal is None and start.start_at is None and not start.delay
    if start.debounce is None and defaults.debounce is not None and alone:
        told = defaults.debounce
        whose = f"the debounce of {start.workflow_type}"
        key = "" if told.key is None else _key(told.key, whose, arguments, _SAY_DEBOUNCE)
        changes["debounce"] = StartDebounce(key=key, wait=told.wait, most=told.most)
    return replace(start, **changes)


class _Arguments:
    """The arguments of a start by name. `unread`: why they cannot be told."""

    def __init__(
        self, given: dict[str, Any] | None = None, reader: InputReader | None = None, unread: str = ""
    ) -> None:
        self._given = given or {}
        self._reader = reader
        self.unread = unread

    def follow(self, path: str) -> Any:
        """Returns the value at a path into the arguments; KeyError, with what leads nowhere."""
        first, *rest = path.split(".")
        if first in self._given or self._reader is None:
            value = self._given[first]
        else:
            value = self._reader.default(first)
        for part in rest:
            if not isinstance(value, dict):
                raise KeyError(part)
            value = value[part]
        return value


def _arguments(start: StartRun, resolved: Resolved) -> _Arguments:
    reader = None if resolved.input_schema is None else input_reader(resolved.input_schema)
    if reader is None:
        return _named(start.input)
    try:
        return _Arguments(reader.read(start.input), reader)
    except Misfit as error:
        if resolved.defaults.codec:  # it may be what the codec made of it
            return _Arguments(unread="the input, which a codec of the workers may have encoded")
        name = start.workflow_type
        raise InvalidRequest(
            f"the input does not fit workflow {name}: {error}. `kagzi workflows show {name}` shows what it takes. "
            "Nothing was written"
        ) from None


def _named(data: bytes) -> _Arguments:
    """Reads arguments of which only their names can be known: those of an object."""
    try:
        given = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Arguments(unread="the input, which is no object of arguments by name")
    return _Arguments(given)


def _key(path: str, whose: str, arguments: _Arguments, advice: str) -> str:
    """Returns the key that is made of the arguments."""
    if path == MADE_BY_CODE:
        raise InvalidRequest(f"the key of {whose} is made by a function in the code of the worker. {advice}")
    if arguments.unread:
        raise InvalidRequest(f"the key of {whose} is {path!r} of {arguments.unread}. {advice}")
    try:
        value = arguments.follow(path)
    except KeyError as error:
        raise InvalidRequest(
            f"the key of {whose} is {path!r} of the input, where there is no {error}. {advice}"
        ) from None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidRequest(
            f"the key of {whose}, {path!r} of the input, must be text or a whole number, not {value!r:.100}"
        )
    return check_name(str(value), f"the key of {whose}")
