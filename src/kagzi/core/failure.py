"""An error as data, as it is stored and sent. `core.exceptions` makes it of an exception, and the other way about."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from kagzi.core.attributes import clean_text
from kagzi.core.classes import dotted_name, find_class
from kagzi.core.error_kind import ErrorKind, kind_of_class
from kagzi.errors import (
    CannotDecode,
    Conflict,
    InvalidRequest,
    NonDeterminismError,
    NonRetryable,
    StepFailed,
    StepTimeout,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowTimedOut,
)

MESSAGE_CHARACTERS: Final = 8_000
TOTAL_CHARACTERS: Final = 128_000  # of everything in one failure with its causes and members
FAILURE_BYTES: Final = 1024 * 1024  # of the whole as JSON; what is within TOTAL_CHARACTERS is within this
DEPTH: Final = 16  # of causes and nested groups together
NESTING: Final = 64  # of anything in a stored failure; those made here come nowhere near it
MEMBERS: Final = 64  # of one exception group
SEALED: Final = "(encoded by the codec of its app)"

ExceptionClass: TypeAlias = type[BaseException]


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
        """Makes a failure that was never raised: made by the engine (poison run, deadline) or elsewhere."""
        found = find_exception(type) if isinstance(type, str) else type
        if kind is None:
            kind = kind_of_class(found) if found is not None else ErrorKind.UNKNOWN
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
            bases=names_of(found)[1] if found is not None else (),
            args=(message,),
            attributes=attributes,
            cause=cause,
        )

    def encode(self) -> bytes:
        return ENCODER.encode(self)

    def seal(self, encode: Callable[[bytes], bytes]) -> Failure:
        """Returns the same error as its app stores it: only what policies and searches need can be read without its
        codec."""
        if self.sealed:
            return self
        sealed = b64encode(encode(self.encode())).decode()
        return Failure(self.type, SEALED, self.kind, self.non_retryable, self.bases, sealed=sealed)

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        """Reads what `encode` wrote. Never raises: whatever else is stored is the message of a StepFailed."""
        try:
            failure = _DECODER.decode(data)
            # Nothing is nested deeper than it has brackets.
            return shallow(failure, NESTING) if _brackets(data) > NESTING else failure
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls.of(StepFailed, data[: 4 * MESSAGE_CHARACTERS].decode("utf-8", "replace")[:MESSAGE_CHARACTERS])

    def is_a(self, cls: ExceptionClass | str) -> bool:
        """Returns whether the error's class is this one or derives from it. A name without a dot is a builtin."""
        if isinstance(cls, str):
            name = cls if "." in cls else f"builtins.{cls}"
        else:
            name = dotted_name(cls)
        return name == self.type or name in self.bases

    def chain(self) -> Iterator[Failure]:
        """Yields this failure, then its causes."""
        at: Failure | None = self
        while at is not None:
            yield at
            at = at.cause

    def __str__(self) -> str:
        name = self.type.removeprefix("builtins.")
        return f"{name}: {self.message}" if self.message else name


def open_failure(data: bytes, decode: Callable[[bytes], bytes]) -> Failure:
    """Reads an error of an app with a codec, which `decode` asks. CannotDecode if it cannot be read, or should have
    been sealed: what is stored as it is, and was not written by the engine, is for the codec to accept or to refuse."""
    failure = Failure.decode(data)
    if not failure.sealed and _holds_nothing(failure):
        return failure
    try:
        if not failure.sealed:
            return Failure.decode(decode(data))
        return msgspec.convert(msgspec.json.decode(decode(b64decode(failure.sealed))), Failure)
    except CannotDecode:
        raise
    except Exception as error:
        raise CannotDecode(f"an error was stored by an app with a codec, and cannot be read: {error}") from None


def _holds_nothing(failure: Failure) -> bool:
    """Returns whether nothing of the app is in this error: it was hidden, or made by the engine, which has no codec."""
    if failure.cause is not None or failure.members or failure.attributes or failure.traceback:
        return False
    if failure.type in _ENGINES and failure.args in ((failure.message,), None):
        return True
    return not failure.args and (not failure.message or _HIDDEN.fullmatch(failure.message) is not None)


_ENGINES: Final = frozenset(
    [dotted_name(cls) for cls in (Conflict, StepTimeout, WorkflowCancelled, WorkflowFailed, WorkflowTimedOut)]
)
HIDDEN: Final = "(hidden: the codec of the app raised {})"
_HIDDEN: Final = re.compile(re.escape(HIDDEN).replace(r"\{\}", r"\w+"))


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


def shallow(failure: Failure, levels: int) -> Failure:
    """Returns the failure with at most so many causes and members behind one another, and no value nested deeper."""
    return msgspec.structs.replace(
        failure,
        args=None if _too_deep(failure.args, NESTING) else failure.args,
        attributes=None if _too_deep(failure.attributes, NESTING) else failure.attributes,
        cause=None if failure.cause is None or levels <= 1 else shallow(failure.cause, levels - 1),
        members=tuple([shallow(member, levels - 1) for member in failure.members]) if levels > 1 else (),
    )


Redact = Callable[[Failure], Failure]

ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Failure)


_NAMES: WeakKeyDictionary[type[BaseException], tuple[str, tuple[str, ...]]] = WeakKeyDictionary()


def names_of(cls: type[BaseException]) -> tuple[str, tuple[str, ...]]:
    names = _NAMES.get(cls)
    if names is None:
        bases = tuple([plain_name(base) for base in cls.__mro__[1:-1]])
        names = _NAMES[cls] = (plain_name(cls), bases)
    return names


def plain_name(cls: type[Any]) -> str:
    """Returns the dotted name of a class, bounded, whatever the class does when it is asked."""
    try:
        return clean_text(dotted_name(cls))[:1_000]
    except Exception:
        return "builtins.Exception"


def find_exception(name: str) -> type[BaseException] | None:
    """Returns the exception class of this dotted name, if its module is loaded. Runs no code."""
    found = find_class(name)
    return found if found is not None and issubclass(found, BaseException) else None
