"""An error as data: exception -> Failure -> bytes -> Failure -> exception.

What workflow code catches is always rebuilt from the stored form, on the first run as on every replay;
otherwise an attribute that does not survive storage would be there once and missing after a crash, and
replay would take another branch. So the way out and the way back obey these rules:

- `from_exception` never raises, whatever the exception does in `__str__`, holds in its attributes or points
  to as its cause; everything is bounded, so that an error fits where a result fits.
- `to_exception` imports nothing and calls no `__init__` or `__new__` of an exception: its class is looked up
  among the modules that are loaded already, which workflow code that names it in an `except` has loaded. A
  class that cannot be found or rebuilt becomes `StepFailed` with the failure attached.
- Only an `Exception` comes back. A body that raises CancelledError, SystemExit or KeyboardInterrupt of its
  own accord has failed; rebuilt as they are, the first would make the workflow look cancelled by somebody and
  the others would tear down the worker. StopIteration cannot pass through a coroutine. All of these come back
  as `StepFailed`.
"""

from __future__ import annotations

import linecache
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

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
from kagzi.core.classes import dotted_name, find_class
from kagzi.errors import (
    CannotDecode,
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
_LOST: Final = 50  # attributes of which is told that they are lost
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


SEALED: Final = "(encoded by the codec of its app)"

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
    lost: dict[str, str] | None = None  # attributes that could not be stored, and what they were
    sealed: str = ""  # all of it, by the codec of the app that has stored it, in base64

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
        message = clean_text(message)
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

    def seal(self, encode: Callable[[bytes], bytes]) -> Failure:
        """The same error as its app stores it: only what policies and searches need can be read without its codec."""
        if self.sealed:
            return self
        sealed = b64encode(encode(self.encode())).decode()
        return Failure(self.type, SEALED, self.kind, self.non_retryable, self.bases, sealed=sealed)

    def unseal(self, read: Callable[[bytes], Any]) -> Failure:
        """The error as it was; `read` makes plain data of what the codec has made. CannotDecode if it cannot."""
        if not self.sealed:
            return self
        try:
            return msgspec.convert(read(b64decode(self.sealed)), Failure)
        except CannotDecode:
            raise
        except Exception as error:
            raise CannotDecode(f"an error was stored by an app with a codec, and cannot be read: {error}") from None

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
            args = tuple([revive(arg) for arg in self.args])
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
            slots = slots_of(cls)
            for name, data in self.attributes.items():
                value = read_attribute(cls, name, data)
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
        for name, data in (self.attributes or {}).items():
            group.__dict__[name] = read_attribute(cls, name, data)
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
            if why := _lost_attribute(exc):
                given = (f"{exc}{why}",)
            if not given:
                return ()
            if isinstance(exc, OSError) and exc.filename is not None:
                given = OSError.__reduce__(exc)[1]  # the file names are not among its args
            args = tuple([store(arg) for arg in given])
            size = len(_ENCODER.encode(args))
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
                size = len(name) + len(_ENCODER.encode(stored))
                if size > room:
                    raise NotStorable(f"a {dotted_name(type(value))} of {size:,} bytes")
            except Exception as problem:
                if len(lost) < _LOST:
                    why = str(problem) if isinstance(problem, NotStorable) else f"a {_dotted(type(value))}"
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


def _plain(name: str) -> str:
    try:
        return clean_text(name)[:1_000]
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
    """Returns the exception class of this dotted name, if its module is loaded. Runs no code."""
    found = find_class(name)
    return found if found is not None and issubclass(found, BaseException) else None


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
    shown = clean_text("\n".join(lines))
    return shown if len(shown) <= limit else "…" + shown[len(shown) - limit + 1 :]
