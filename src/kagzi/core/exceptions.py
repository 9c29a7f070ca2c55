"""Exceptions as failures, and back: exception -> Failure -> bytes -> Failure -> exception.

What workflow code catches is always rebuilt from the stored form, on the first run as on every replay;
otherwise an attribute that does not survive storage would be there once and missing after a crash, and
replay would take another branch. So the way out and the way back obey these rules:

- `failure_of` never raises, whatever the exception does in `__str__`, holds in its attributes or points
  to as its cause; everything is bounded, so that an error fits where a result fits.
- `exception_of` imports nothing and calls no `__init__` or `__new__` of an exception: its class is looked up
  among the modules that are loaded already, which workflow code that names it in an `except` has loaded. A
  class that cannot be found or rebuilt becomes `StepFailed` with the failure attached.
- Only an `Exception` comes back. A body that raises CancelledError, SystemExit or KeyboardInterrupt of its
  own accord has failed; rebuilt as they are, the first would make the workflow look cancelled by somebody and
  the others would tear down the worker. StopIteration cannot pass through a coroutine. All of these come back
  as `StepFailed`.
"""

from __future__ import annotations

import linecache
from datetime import timedelta
from types import TracebackType
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from kagzi.core.attributes import (
    NotStorable,
    attributes_of,
    clean_text,
    read_attribute,
    revive,
    slots_of,
    store,
    store_attribute,
)
from kagzi.core.classes import dotted_name
from kagzi.core.error_kind import classify
from kagzi.core.failure import (
    DEPTH,
    ENCODER,
    MEMBERS,
    MESSAGE_CHARACTERS,
    TOTAL_CHARACTERS,
    ExceptionClass,
    Failure,
    Redact,
    find_exception,
    names_of,
    plain_name,
    shallow,
)
from kagzi.errors import KagziError, RetryAfter, StepFailed, WorkflowFailed

TRACEBACK_CHARACTERS: Final = 16_000
VALUES_BYTES: Final = 16_000  # args and attributes of one exception, each
_FRAMES: Final = 60
_LOST: Final = 50  # attributes of which is told that they are lost
_ORIGIN: Final = "__kagzi_failure__"  # on a rebuilt exception: the failure it was rebuilt from
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not one of the interpreter's own static types
_UNRAISABLE = (StopIteration, StopAsyncIteration)


def failure_of(exc: BaseException, *, redact: Redact | None = None) -> Failure:
    """Returns the exception as data. Never raises.

    `redact` is called with every failure of the chain, innermost first, and returns what to store
    instead. If it raises, only the type is kept: a broken hook must not leak what it was to hide.
    """
    try:
        return _Builder(redact).build(exc, 0)
    except Exception as problem:
        note = f"(this error could not be recorded: {type(problem).__name__})"
        return Failure(plain_name(type(exc)), note)


def exception_of(failure: Failure) -> Exception:
    """Returns the exception to raise in the workflow; see the rules above."""
    exc: Exception | None = None
    found = find_exception(failure.type)
    if failure.members:
        exc = _rebuild_group(failure, found)
    elif found is not None and issubclass(found, Exception) and not issubclass(found, _UNRAISABLE):
        exc = _rebuild(failure, found)
    if exc is None:
        exc = StepFailed(str(failure), failure)
    if failure.cause is not None:
        exc.__cause__ = exception_of(failure.cause)
    return exc


def _rebuild(failure: Failure, cls: type[Exception]) -> Exception | None:
    args: tuple[Any, ...]
    if failure.args is None:
        args = (failure.message,)
    else:
        args = tuple([revive(arg) for arg in failure.args])
    base = _builtin_base(cls)
    try:
        exc: BaseException = base.__new__(cls, *args)
    except Exception:
        return None  # a class with a constructor in C of its own, for example pydantic's ValidationError
    try:
        # Fills what the builtin keeps outside __dict__: OSError.errno, UnicodeError.reason …
        base.__init__(exc, *args)
    except Exception:
        pass
    if not isinstance(exc, Exception):
        return None
    state = exc.__dict__
    if failure.attributes:
        slots = slots_of(cls)
        for name, data in failure.attributes.items():
            value = read_attribute(cls, name, data)
            if name in slots:
                object.__setattr__(exc, name, value)
            else:
                state[name] = value
    if isinstance(exc, StepFailed):
        state["failure"] = failure.cause if failure.cause is not None and type(exc) is StepFailed else failure
    elif isinstance(exc, WorkflowFailed):
        state.setdefault("run_id", "")
        state["failure"] = failure.cause
    elif isinstance(exc, RetryAfter):
        state.setdefault("delay", 0.0)
    state[_ORIGIN] = failure
    return exc


def _rebuild_group(failure: Failure, found: ExceptionClass | None) -> Exception | None:
    cls: type[ExceptionGroup[Exception]] = ExceptionGroup
    if found is not None and issubclass(found, ExceptionGroup):
        cls = found
    try:
        # Not cls.__new__, which may be the user's own.
        members = [exception_of(member) for member in failure.members]
        group = ExceptionGroup.__new__(cls, failure.message, members)
    except Exception:
        return None
    for name, data in (failure.attributes or {}).items():
        group.__dict__[name] = read_attribute(cls, name, data)
    group.__dict__[_ORIGIN] = failure
    return group


_BUILTIN_BASES: WeakKeyDictionary[type[BaseException], type[BaseException]] = WeakKeyDictionary()


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    base = _BUILTIN_BASES.get(cls)
    if base is None:
        found: type[Any] = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE)
        # With several bases the layout decides: StepTimeout derives from a plain exception and from OSError,
        # and only OSError.__new__ may make one.
        for candidate in cls.__mro__:
            if not candidate.__flags__ & _HEAP_TYPE and candidate.__basicsize__ > found.__basicsize__:
                found = candidate
        base = _BUILTIN_BASES[cls] = found
    return base


class _Builder:
    """Turns one exception with all it points to into a Failure, within a common budget."""

    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact
        self._budget = TOTAL_CHARACTERS
        self._seen: set[int] = set()

    def build(self, exc: BaseException, depth: int) -> Failure:
        self._seen.add(id(exc))
        origin = exc.__dict__.get(_ORIGIN)
        name, bases = names_of(type(exc))
        self._budget -= sum(map(len, bases), len(name))
        message = self._spend(_message(exc, origin), MESSAGE_CHARACTERS)
        kind, non_retryable = classify(exc)
        attributes, lost = self._attributes(exc)
        members: tuple[Failure, ...] = ()
        args: tuple[Any, ...] | None = None
        if isinstance(exc, BaseExceptionGroup):
            members = self._members(exc, depth)
        else:
            args = self._args(exc)
        failure = Failure(
            type=name,
            message=message,
            kind=kind,
            non_retryable=non_retryable,
            bases=bases,
            args=args,
            attributes=attributes or None,
            traceback=self._traceback(exc, origin),
            cause=self._cause(exc, depth),
            members=members,
            lost=lost or None,
        )
        if self._redact is not None:
            try:
                return msgspec.convert(self._redact(failure), Failure)
            except Exception:
                return _hidden(name)
        return failure

    def _spend(self, text: str, limit: int) -> str:
        limit = max(0, min(limit, self._budget))
        if len(text) > limit:
            text = text[:limit] + "…"
        self._budget -= len(text)
        return text

    def _cause(self, exc: BaseException, depth: int) -> Failure | None:
        cause = exc.__cause__
        if cause is None and not exc.__suppress_context__:
            cause = exc.__context__
        if cause is not None:
            if id(cause) in self._seen or depth >= DEPTH or self._budget <= 0:
                return None
            return self.build(cause, depth + 1)
        if isinstance(exc, (StepFailed, WorkflowFailed)):
            stored = exc.__dict__.get("failure")
            if isinstance(stored, Failure) and stored is not exc.__dict__.get(_ORIGIN):
                return self._stored_cause(stored, DEPTH - depth)
        return None

    def _stored_cause(self, stored: Failure, levels: int) -> Failure | None:
        """Returns what fits of a failure that is data already; else a chain of runs would make one without end."""
        if levels <= 0 or self._budget <= 0:
            return None
        stored = shallow(stored, levels)
        size = len(stored.encode())
        if size > self._budget:
            stored = Failure(stored.type, stored.message[:200], stored.kind, stored.non_retryable, stored.bases)
        self._budget -= size
        return stored

    def _members(self, group: BaseExceptionGroup[Any], depth: int) -> tuple[Failure, ...]:
        members = []
        for member in group.exceptions[:MEMBERS]:
            if depth >= DEPTH or self._budget <= 0:
                members.append(Failure(names_of(type(member))[0], _message(member, None)[:200]))
            else:
                members.append(self.build(member, depth + 1))
        return tuple(members)

    def _args(self, exc: BaseException) -> tuple[Any, ...] | None:
        try:
            given: Any = exc.args
            if why := _lost_attribute(exc):
                given = (f"{exc}{why}",)
            if not given:
                return ()
            if isinstance(exc, OSError) and exc.filename is not None:
                given = OSError.__reduce__(exc)[1]  # the file names are not among its args
            args = tuple([store(arg) for arg in given])
            size = len(ENCODER.encode(args))
        except Exception:
            return None
        if size > VALUES_BYTES or size > self._budget:
            return None
        self._budget -= size
        return args

    def _attributes(self, exc: BaseException) -> tuple[dict[str, Any], dict[str, str]]:
        attributes: dict[str, Any] = {}
        lost: dict[str, str] = {}
        room = full = max(0, min(VALUES_BYTES, self._budget))
        for key, value in attributes_of(exc):
            if key == _ORIGIN or (key == "failure" and isinstance(exc, (StepFailed, WorkflowFailed))):
                continue
            if key == "delay" and isinstance(value, timedelta) and isinstance(exc, RetryAfter):
                value = value.total_seconds()
            name = clean_text(key)
            try:
                stored = store_attribute(exc, key, value)
                size = len(name) + len(ENCODER.encode(stored))
                if size > room:
                    raise NotStorable(f"a {dotted_name(type(value))} of {size:,} bytes")
            except Exception as problem:
                if len(lost) < _LOST:
                    why = str(problem) if isinstance(problem, NotStorable) else f"a {plain_name(type(value))}"
                    lost[name[:200]] = self._spend(clean_text(why), 200)
                continue
            room -= size
            attributes[name] = stored
        self._budget -= full - room
        return attributes, lost

    def _traceback(self, exc: BaseException, origin: object) -> str:
        limit = max(0, min(TRACEBACK_CHARACTERS, self._budget))
        # An error of Kagzi's or of a step is explained by where the user's code met it. Any other that was raised
        # within Kagzi is a mistake of ours, and is looked for there.
        theirs = isinstance(origin, Failure) or isinstance(exc, KagziError)
        text = _format_traceback(exc.__traceback__, limit, theirs=theirs)
        if isinstance(origin, Failure) and origin.traceback:
            # The error of a step, on its way out of the workflow: where it came from matters most.
            text = f"{text}\nIn the step:\n{origin.traceback}" if text else origin.traceback
        return self._spend(text, TRACEBACK_CHARACTERS)


def _hidden(name: str) -> Failure:
    return Failure(name, "(hidden: the redaction hook failed)")


def _message(exc: BaseException, origin: object) -> str:
    try:
        if isinstance(exc, BaseExceptionGroup):
            return clean_text(exc.message)
        return clean_text(str(exc)) + _lost_attribute(exc)
    except Exception:
        # A rebuilt exception may lack what its __str__ reads; its stored message is the better answer then.
        if isinstance(origin, Failure):
            return origin.message
        return f"(str() of this {type(exc).__name__} failed)"


def _lost_attribute(exc: BaseException) -> str:
    """Returns why a rebuilt exception lacks the attribute that somebody has asked it for, if this is about that."""
    if not isinstance(exc, AttributeError) or not isinstance(exc.obj, BaseException):
        return ""
    origin = exc.obj.__dict__.get(_ORIGIN)
    why = (origin.lost or {}).get(exc.name or "") if isinstance(origin, Failure) else None
    if why is None:
        return ""
    return f". The step raised it with one, {why}, which cannot be stored; give exceptions attributes of plain data"


def _format_traceback(tb: TracebackType | None, limit: int, *, theirs: bool) -> str:
    """Like traceback.format_tb without carets, at a tenth of its cost; of a deep stack both ends.

    Kagzi's own frames, through which every error of a step or workflow passes, are left out, unless the error was
    raised in one of them and is not `theirs`.
    """
    frames: list[tuple[str, int, str]] = []
    users: list[tuple[str, int, str]] = []
    own = False
    while tb is not None:
        code = tb.tb_frame.f_code
        frame = (code.co_filename, tb.tb_lineno, code.co_qualname)
        frames.append(frame)
        own = str(tb.tb_frame.f_globals.get("__name__")).startswith("kagzi.")
        if not own:
            users.append(frame)
        tb = tb.tb_next
    if theirs or not own:
        frames = users
    if not frames or limit <= 0:
        return ""
    lines: list[str] = []
    for index, (filename, number, name) in enumerate(frames):
        if len(frames) > _FRAMES and 10 <= index < len(frames) - (_FRAMES - 10):
            if index == 10:
                lines.append(f"  … {len(frames) - _FRAMES} more frames …")
            continue
        lines.append(f'  File "{filename}", line {number}, in {name}')
        source = linecache.getline(filename, number).strip()
        if source:
            lines.append(f"    {source[:200]}")
    shown = clean_text("\n".join(lines))
    return shown if len(shown) <= limit else "…" + shown[len(shown) - limit + 1 :]
