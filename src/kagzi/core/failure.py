"""An error as data: exception -> Failure -> bytes -> Failure -> exception.

What workflow code catches is always rebuilt from the stored form, on the first run as on every replay;
otherwise an attribute that does not survive storage would be there once and missing after a crash, and
replay would take another branch. So the way out and the way back obey these rules:

- `from_exception` never raises, whatever the exception does in `__str__`, holds in its attributes or points
  to as its cause; everything is bounded, so that an error fits where a result fits.
- `to_exception` imports nothing and calls no `__init__` or `__new__` written in Python: a class is looked up
  among the modules that are loaded already, which workflow code that names it in an `except` has loaded. A
  class that cannot be found or rebuilt becomes `StepFailed` with the failure attached.
- Only an `Exception` comes back. A body that raises CancelledError, SystemExit or KeyboardInterrupt of its
  own accord has failed; rebuilt as they are, the first would make the workflow look cancelled by somebody and
  the others would tear down the worker. StopIteration cannot pass through a coroutine. All of these come back
  as `StepFailed`.
"""

from __future__ import annotations

import base64
import linecache
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum, StrEnum
from types import ModuleType, TracebackType
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from kagzi.errors import (
    InvalidRequest,
    KagziError,
    NonDeterminismError,
    NonRetryable,
    NotFound,
    RetryAfter,
    StepFailed,
    StepTimeout,
    Unavailable,
    WorkflowFailed,
    WorkflowTimedOut,
)

MESSAGE_CHARACTERS: Final = 8_000
TRACEBACK_CHARACTERS: Final = 16_000
VALUES_BYTES: Final = 16_000  # args and attributes of one exception, each
TOTAL_CHARACTERS: Final = 128_000  # of everything in one failure with its causes and members
FAILURE_BYTES: Final = 1024 * 1024  # of the whole as JSON; what is within TOTAL_CHARACTERS is within this
DEPTH: Final = 16  # of causes and nested groups together
NESTING: Final = 64  # of anything in a stored failure; those made here come nowhere near it
MEMBERS: Final = 64  # of one exception group
_FRAMES: Final = 60
_VALUE_DEPTH: Final = 8
_VALUE_ITEMS: Final = 1_000
_ORIGIN: Final = "__kagzi_failure__"  # on a rebuilt exception: the failure it was rebuilt from
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not one of the interpreter's own static types


class ErrorKind(StrEnum):
    """What sort of trouble it was. The last four of the known ones do not go away by trying again."""

    NETWORK = "network"
    TIMEOUT = "timeout"
    DATABASE = "database"
    RATE_LIMIT = "rate_limit"
    UNAVAILABLE = "unavailable"
    NOT_FOUND = "not_found"
    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad_request"
    VALIDATION = "validation"
    UNKNOWN = "unknown"

    @property
    def retryable(self) -> bool:
        return self not in _HOPELESS


_HOPELESS = frozenset({ErrorKind.NOT_FOUND, ErrorKind.UNAUTHORIZED, ErrorKind.BAD_REQUEST, ErrorKind.VALIDATION})
_KINDS = {kind.value: kind for kind in ErrorKind}


# Names for what the field `Failure.type` hides within its class.
_class_of = type
ExceptionClass: TypeAlias = type[BaseException]
_OrdinaryClass: TypeAlias = type[Exception]
_GroupClass: TypeAlias = type[ExceptionGroup[Exception]]


class Failure(Struct, frozen=True, omit_defaults=True):
    """A stored error. `type` and `bases` are dotted names, so policies match by class across a wire too."""

    type: str
    message: str = ""
    kind: ErrorKind = ErrorKind.UNKNOWN
    non_retryable: bool = False
    bases: tuple[str, ...] = ()  # the classes `type` derives from, nearest first, without `object`
    args: tuple[Any, ...] | None = None  # None: they cannot be written as JSON
    attributes: dict[str, Any] | None = None  # those items of vars(exception) that can be written as JSON
    traceback: str = ""
    cause: Failure | None = None
    members: tuple[Failure, ...] = ()  # of an exception group

    @classmethod
    def from_exception(cls, exc: BaseException, *, redact: Redact | None = None) -> Failure:
        """The exception as data. Never raises.

        `redact` is called with every failure of the chain, innermost first, and returns what to store
        instead. If it raises, only the type is kept: a broken hook must not leak what it was to hide.
        """
        try:
            return _Builder(redact).build(exc, 0)
        except Exception as problem:
            note = f"(this error could not be recorded: {type(problem).__name__})"
            return cls(_plain(_dotted(type(exc))), note)

    @classmethod
    def of(
        cls,
        type: str | ExceptionClass,
        message: str,
        kind: ErrorKind | None = None,
        *,
        non_retryable: bool | None = None,
        attributes: dict[str, Any] | None = None,
        cause: Failure | None = None,
    ) -> Failure:
        """A failure that was never raised: made by the engine (poison run, deadline) or elsewhere."""
        found = _find(type) if isinstance(type, str) else type
        if kind is None:
            kind = _kind_of_class(found) if found is not None else ErrorKind.UNKNOWN
        if non_retryable is None:
            non_retryable = not kind.retryable or (
                found is not None and issubclass(found, (NonRetryable, NonDeterminismError))
            )
        message = _text(message)
        return cls(
            type=type if isinstance(type, str) else dotted_name(type),
            message=message,
            kind=kind,
            non_retryable=non_retryable,
            bases=_names(found)[1] if found is not None else (),
            args=(message,),
            attributes=attributes,
            cause=cause,
        )

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        """Reads what `encode` wrote. Never raises: whatever else is stored is the message of a StepFailed."""
        try:
            failure = _DECODER.decode(data)
            # Nothing is nested deeper than it has brackets.
            return _shallow(failure, NESTING) if _brackets(data) > NESTING else failure
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls.of(StepFailed, data[: 4 * MESSAGE_CHARACTERS].decode("utf-8", "replace")[:MESSAGE_CHARACTERS])

    def is_a(self, cls: ExceptionClass | str) -> bool:
        """Whether the error's class is this one or derives from it. A name without a dot is a builtin."""
        if isinstance(cls, str):
            name = cls if "." in cls else f"builtins.{cls}"
        else:
            name = dotted_name(cls)
        return name == self.type or name in self.bases

    def chain(self) -> Iterator[Failure]:
        """This failure, then its causes."""
        at: Failure | None = self
        while at is not None:
            yield at
            at = at.cause

    def __str__(self) -> str:
        name = self.type.removeprefix("builtins.")
        return f"{name}: {self.message}" if self.message else name

    def to_exception(self) -> Exception:
        """The exception to raise in the workflow; see the rules above."""
        exc: Exception | None = None
        found = _find(self.type)
        if self.members:
            exc = self._rebuild_group(found)
        elif found is not None and issubclass(found, Exception) and not issubclass(found, _UNRAISABLE):
            exc = self._rebuild(found)
        if exc is None:
            exc = StepFailed(str(self), self)
        if self.cause is not None:
            exc.__cause__ = self.cause.to_exception()
        return exc

    def _rebuild(self, cls: _OrdinaryClass) -> Exception | None:
        args: tuple[Any, ...]
        if self.args is None:
            args = (self.message,)
        else:
            args = tuple([_revive(arg) for arg in self.args])
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
        if self.attributes:
            slots = _slots(cls)
            for name, value in self.attributes.items():
                if name in slots:
                    object.__setattr__(exc, name, value)
                else:
                    state[name] = value
        if isinstance(exc, StepFailed):
            state["failure"] = self.cause if self.cause is not None and _class_of(exc) is StepFailed else self
        elif isinstance(exc, WorkflowFailed):
            state.setdefault("run_id", "")
            state["failure"] = self.cause
        elif isinstance(exc, RetryAfter):
            state.setdefault("delay", 0.0)
        state[_ORIGIN] = self
        return exc

    def _rebuild_group(self, found: ExceptionClass | None) -> Exception | None:
        cls: _GroupClass = ExceptionGroup
        if found is not None and issubclass(found, ExceptionGroup):
            cls = found
        try:
            # Not cls.__new__, which may be the user's own.
            members = [member.to_exception() for member in self.members]
            group = ExceptionGroup.__new__(cls, self.message, members)
        except Exception:
            return None
        if self.attributes:
            group.__dict__.update(self.attributes)
        group.__dict__[_ORIGIN] = self
        return group


def check_failure(data: bytes, field: str) -> None:
    """Refuses an error that somebody reports, if reading it would cost or break more than any error of ours does.

    Bytes that are no failure at all pass: they are read as text.
    """
    if len(data) > FAILURE_BYTES:
        raise InvalidRequest(f"{field} is {len(data):,} bytes; at most {FAILURE_BYTES:,} are stored of an error")
    if _brackets(data) <= NESTING:
        return
    try:
        if _too_deep(_DECODER.decode(data), NESTING):
            raise RecursionError
    except RecursionError:
        raise InvalidRequest(
            f"{field} is nested too deeply: causes, members and values go at most {NESTING} levels deep; "
            "leave out the inner ones"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass


def _brackets(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def _too_deep(value: object, levels: int) -> bool:
    if isinstance(value, Failure):
        return levels <= 0 or any(
            _too_deep(part, levels - 1) for part in (value.cause, value.members, value.args, value.attributes) if part
        )
    if isinstance(value, dict):
        return levels <= 0 or any(_too_deep(item, levels - 1) for item in value.values())
    if isinstance(value, (list, tuple)):
        return levels <= 0 or any(_too_deep(item, levels - 1) for item in value)
    return False


def _shallow(failure: Failure, levels: int) -> Failure:
    """Returns the failure with at most so many causes and members behind one another, and no value nested deeper."""
    return msgspec.structs.replace(
        failure,
        args=None if _too_deep(failure.args, NESTING) else failure.args,
        attributes=None if _too_deep(failure.attributes, NESTING) else failure.attributes,
        cause=None if failure.cause is None or levels <= 1 else _shallow(failure.cause, levels - 1),
        members=tuple([_shallow(member, levels - 1) for member in failure.members]) if levels > 1 else (),
    )


Redact = Callable[[Failure], Failure]

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Failure)
_UNRAISABLE = (StopIteration, StopAsyncIteration)


def dotted_name(cls: type[Any]) -> str:
    """`module.QualName`, the name a class has in storage and on the wire."""
    return f"{cls.__module__}.{cls.__qualname__}"


class _Builder:
    """Turns one exception with all it points to into a Failure, within a common budget."""

    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact
        self._budget = TOTAL_CHARACTERS
        self._seen: set[int] = set()

    def build(self, exc: BaseException, depth: int) -> Failure:
        self._seen.add(id(exc))
        origin = exc.__dict__.get(_ORIGIN)
        name, bases = _names(type(exc))
        self._budget -= sum(map(len, bases), len(name))
        message = self._spend(_message(exc, origin), MESSAGE_CHARACTERS)
        kind, non_retryable = classify(exc)
        attributes = self._attributes(exc)
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
        stored = _shallow(stored, levels)
        size = len(stored.encode())
        if size > self._budget:
            stored = Failure(stored.type, stored.message[:200], stored.kind, stored.non_retryable, stored.bases)
        self._budget -= size
        return stored

    def _members(self, group: BaseExceptionGroup[Any], depth: int) -> tuple[Failure, ...]:
        members = []
        for member in group.exceptions[:MEMBERS]:
            if depth >= DEPTH or self._budget <= 0:
                members.append(Failure(_names(type(member))[0], _message(member, None)[:200]))
            else:
                members.append(self.build(member, depth + 1))
        return tuple(members)

    def _args(self, exc: BaseException) -> tuple[Any, ...] | None:
        try:
            given: Any = exc.args
            if not given:
                return ()
            if isinstance(exc, OSError) and exc.filename is not None:
                given = OSError.__reduce__(exc)[1]  # the file names are not among its args
            args = tuple([_storable(arg, 0) for arg in given])
            size = len(_ENCODER.encode(args))
        except Exception:
            return None
        if size > VALUES_BYTES or size > self._budget:
            return None
        self._budget -= size
        return args

    def _attributes(self, exc: BaseException) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        room = min(VALUES_BYTES, self._budget)
        for key, value in _state(exc):
            try:
                if key == "delay" and isinstance(value, timedelta) and isinstance(exc, RetryAfter):
                    value = value.total_seconds()
                value = _storable(value, 0)
                room -= len(key) + len(_ENCODER.encode(value))
            except Exception:
                continue
            if room < 0:
                break
            attributes[_text(key)] = value
        self._budget -= max(0, min(VALUES_BYTES, self._budget) - room) if attributes else 0
        return attributes

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
            return _text(exc.message)
        return _text(str(exc))
    except Exception:
        # A rebuilt exception may lack what its __str__ reads; its stored message is the better answer then.
        if isinstance(origin, Failure):
            return origin.message
        return f"(str() of this {type(exc).__name__} failed)"


def _text(text: str) -> str:
    """Text that every database and JSON reader takes: no NUL, no half surrogate pair."""
    if "\0" in text:
        text = text.replace("\0", "\\0")
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text


def _plain(name: str) -> str:
    try:
        return _text(name)[:1_000]
    except Exception:
        return "builtins.Exception"


def _dotted(cls: type[Any]) -> str:
    try:
        return dotted_name(cls)
    except Exception:
        return "builtins.Exception"


_NAMES: WeakKeyDictionary[type[BaseException], tuple[str, tuple[str, ...]]] = WeakKeyDictionary()


def _names(cls: type[BaseException]) -> tuple[str, tuple[str, ...]]:
    names = _NAMES.get(cls)
    if names is None:
        bases = tuple([_plain(_dotted(base)) for base in cls.__mro__[1:-1]])
        names = _NAMES[cls] = (_plain(_dotted(cls)), bases)
    return names


def _find(name: str) -> type[BaseException] | None:
    """Returns the exception class of this dotted name, if its module is loaded.

    The name may come from anybody who may report an error, so looking it up runs no code: no `__getattr__` of a
    module, which may import others, and no property. Only what stands in a module or a class itself is found.
    """
    module_name, _, path = name.rpartition(".")
    while module_name and module_name not in sys.modules:  # a class within a class: the module ends earlier
        module_name, _, part = module_name.rpartition(".")
        path = f"{part}.{path}"
    found: object = sys.modules.get(module_name)
    for part in path.split("."):
        found = _contents(found).get(part)
    if issubclass(type(found), type) and issubclass(found, BaseException):  # type: ignore[arg-type]
        return found  # type: ignore[return-value]
    return None


def _contents(holder: object) -> Mapping[str, object]:
    """Returns what a module or class holds. By the real type: `isinstance` would ask an object for its `__class__`."""
    if issubclass(type(holder), type):
        return _CLASS_CONTENTS(holder)
    if issubclass(type(holder), ModuleType):
        contents: dict[str, object] = object.__getattribute__(holder, "__dict__")
        return contents
    return {}


_CLASS_CONTENTS: Callable[[Any], Mapping[str, object]] = type.__dict__["__dict__"].__get__


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


_SLOTS: WeakKeyDictionary[type[BaseException], tuple[str, ...]] = WeakKeyDictionary()


def _slots(cls: type[BaseException]) -> tuple[str, ...]:
    slots = _SLOTS.get(cls)
    if slots is None:
        names: list[str] = []
        for base in cls.__mro__:
            own = base.__dict__.get("__slots__", ())
            names.extend([own] if isinstance(own, str) else [name for name in own if isinstance(name, str)])
        slots = _SLOTS[cls] = tuple(name for name in names if name not in ("__dict__", "__weakref__"))
    return slots


def _state(exc: BaseException) -> Iterator[tuple[str, Any]]:
    for key, value in list(exc.__dict__.items()):
        if key != _ORIGIN and isinstance(key, str):
            yield key, value
    for key in _slots(type(exc)):
        try:
            yield key, object.__getattribute__(exc, key)
        except AttributeError:
            pass


class _NotStorable(Exception):
    pass


def _storable(value: Any, depth: int) -> Any:
    """A copy of plain data, harmless in every database; raises for anything else."""
    cls = type(value)
    if cls is str:
        return _text(value)
    if cls is int or cls is bool or value is None:
        if cls is int and not -(1 << 63) <= value < 1 << 63:
            raise _NotStorable
        return value
    if depth > _VALUE_DEPTH:
        raise _NotStorable
    if isinstance(value, Enum):
        return _storable(value.value, depth + 1)
    if cls is float:
        if not math.isfinite(value):
            raise _NotStorable
        return value
    if cls is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if cls is list or cls is tuple:
        if len(value) > _VALUE_ITEMS:
            raise _NotStorable
        return [_storable(item, depth + 1) for item in value]
    if cls is dict:
        if len(value) > _VALUE_ITEMS or not all(type(key) is str for key in value):
            raise _NotStorable
        return {_text(key): _storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, str):
        return _text(str.__str__(value))
    raise _NotStorable


def _revive(value: Any) -> Any:
    # Bytes come back only as a whole argument: that is what UnicodeDecodeError is made of.
    if type(value) is dict and len(value) == 1 and type(value.get("$bytes")) is str:
        try:
            return base64.b64decode(value["$bytes"])
        except ValueError:
            return value
    return value


def classify(exc: BaseException) -> tuple[ErrorKind, bool]:
    """The kind, and whether trying again is known to be useless.

    An exception says its own kind in an attribute `kind`. Of the others only Kagzi's own are known to be
    hopeless: a FileNotFoundError is retried like any other, because the file may be there a moment later.
    """
    try:
        kind_said = getattr(exc, "kind", None)
        said = _KINDS.get(kind_said) if isinstance(kind_said, str) else None
    except Exception:
        said = None
    kind = said or _kind_of_class(type(exc))
    return kind, not kind.retryable or isinstance(exc, (NonRetryable, NonDeterminismError))


def _kind_of_class(cls: type[BaseException]) -> ErrorKind:
    if issubclass(cls, (TimeoutError, StepTimeout, WorkflowTimedOut)):
        return ErrorKind.TIMEOUT
    if issubclass(cls, ConnectionError):
        return ErrorKind.NETWORK
    if issubclass(cls, Unavailable):
        return ErrorKind.UNAVAILABLE
    if issubclass(cls, InvalidRequest):
        return ErrorKind.BAD_REQUEST
    if issubclass(cls, NotFound):
        return ErrorKind.NOT_FOUND
    if cls.__module__.partition(".")[0] in _DATABASE_MODULES:
        return ErrorKind.DATABASE
    return ErrorKind.UNKNOWN


_DATABASE_MODULES = frozenset({"sqlite3", "asyncpg", "psycopg", "psycopg2", "pymysql", "aiomysql", "oracledb"})


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
    text = _text("\n".join(lines))
    return text if len(text) <= limit else "…" + text[len(text) - limit + 1 :]
