"""One value <-> JSON bytes, decoded by annotation.

Everything durable passes through here: the input of a run, the arguments and the result of a step. What comes
back has the type the annotation names, on the first run as on every replay. Without an annotation it is plain
JSON data: a tuple comes back as a list, a dataclass as a dict.

What JSON cannot say is refused before anything is written: NaN and infinities (msgspec would write null),
objects of unknown classes, and everything else that would come back as something else (`core.survival`).
"""

from __future__ import annotations

import inspect
import math
import re
from asyncio import Future
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from kagzi.core.failure import Failure, open_failure
from kagzi.core.lineage import PayloadContext
from kagzi.core.survival import loss, secret_reason, secrets, survives
from kagzi.core.values import UNREADABLE, class_name, read_plain, to_builtins, to_json
from kagzi.errors import InvalidRequest, NotSerializable

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DEEPEST_LOOK = 10
SEALED = "it was encoded by a codec that this app has not; give it that of the app that has written it"


class Codec(Protocol):
    """A layer around the JSON of every payload, for compression or encryption. `context` says what the payload is, and
    of which run."""

    def encode(self, data: bytes, context: PayloadContext, /) -> bytes: ...

    def decode(self, data: bytes, context: PayloadContext, /) -> bytes: ...


def check_codec(codec: object, what: str) -> None:
    """Refuses a value that is no codec. The class of a codec is none either: an object of it encodes."""
    methods = [getattr(codec, name, None) for name in ("encode", "decode")]
    if isinstance(codec, type) or not all(map(callable, methods)):
        raise InvalidRequest(f"{what}, an object with encode and decode such as Compress(), not {codec!r:.100}")
    for method in methods:
        try:
            inspect.signature(method).bind(b"", None)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidRequest(
                f"{what}, whose encode and decode take the data and a kagzi.PayloadContext, which says what it is: "
                f"def encode(self, data, context), not {codec!r:.100}"
            ) from None
        except ValueError:
            pass  # of something that does not tell what it takes


class Reader:
    """Reads stored payloads of an app as plain data, and its errors."""

    __slots__ = ("codec",)

    def __init__(self, codec: Codec | None) -> None:
        self.codec = codec

    def __call__(self, data: bytes, context: PayloadContext | None) -> Any:
        """Reads a payload; None for one that no codec has seen, because it was not the app that has written it."""
        return decode(data if self.codec is None or context is None else self.codec.decode(data, context))

    def failure(self, data: bytes, context: PayloadContext) -> Failure:
        """Reads an error. CannotDecode if another app has sealed it, or if this one would have and has not."""
        codec = self.codec
        if codec is None:
            failure = Failure.decode(data)
            return open_failure(data, bytes) if failure.sealed else failure
        return open_failure(data, lambda stored: codec.decode(stored, context))


def given(context: PayloadContext | None) -> PayloadContext:
    """Returns the context that a codec is told; who has a codec knows what it encodes."""
    assert context is not None, "a codec is told what it encodes"
    return context


def decode(data: bytes) -> Any:
    """Reads plain JSON data; InvalidRequest if it is none."""
    try:
        return read_plain(data)
    except UNREADABLE as error:
        raise InvalidRequest(f"the payload cannot be read as JSON: {reason_of(error, data)}") from None


# What was wrong, for people.


def refuse_nan(value: Any, what: str) -> None:
    for path, item in _walk(to_builtins(value)):
        if isinstance(item, float) and not math.isfinite(item):
            raise NotSerializable(
                f"{what} holds {item} at {path}, and JSON has no such number; use None or a text instead"
            )


def _walk(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")


def refuse_secrets(value: Any, what: str) -> None:
    for path, secret in secrets(value):
        if secret.get_secret_value():
            raise NotSerializable(f"{what} does not survive being stored: at {path} is {secret_reason(secret)}")


def refuse_changed(value: Any, copy: Any, what: str) -> None:
    """Refuses a value that loses something in the copy that JSON makes of it."""
    if survives(value, copy):
        return
    try:
        found = loss(value, copy)
    except RecursionError:
        raise NotSerializable(f"{what} is nested too deeply to be compared with what is stored of it") from None
    if found is not None:
        raise NotSerializable(f"{what} does not survive being stored: {found}")


def refuse(value: Any, what: str, error: Exception) -> NoReturn:
    if isinstance(error, RecursionError):
        raise NotSerializable(f"{what} is nested too deeply for JSON, or contains itself") from None
    refuse_unawaited(value, what)
    path, culprit, reason = _culprit(value, "$", error)
    raise NotSerializable(
        f"{what} cannot be written as JSON: at {path} is {safe_repr(culprit):.100} of type "
        f"{class_name(type(culprit))} ({reason}). Use plain data, a dataclass or another type JSON can hold"
    ) from None


def refuse_unawaited(value: Any, what: str) -> None:
    """Refuses a call without `await` in front of it, which is a mistake wherever it turns up."""
    if _holds_coroutine(value, _DEEPEST_LOOK):
        raise NotSerializable(
            f"{what} holds the call of an async function and not its result; write `await` before the call"
        )


def _holds_coroutine(value: Any, depth: int) -> bool:
    # Not in attributes of objects, which are nobody's concern: a client may well have a future in it.
    if isinstance(value, (Coroutine, Future)):
        return True
    if depth == 0 or not isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return False
    items = value.values() if isinstance(value, Mapping) else value
    return any(_holds_coroutine(item, depth - 1) for item in items)


def _culprit(value: Any, path: str, error: Exception) -> tuple[str, Any, str]:
    """Returns the innermost part of a value that cannot be encoded."""
    for step, item in _parts(value):
        try:
            to_json(item)
        except Exception as inner:
            return _culprit(item, path + step, inner)
    return path, value, str(error)[:200]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f".{safe_repr(key)[:50]}" if not isinstance(key, str) else f".{key[:50]}", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    else:
        names: Any = getattr(type(value), "__struct_fields__", None) or getattr(value, "__dict__", ())
        for name in names:
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def safe_repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{class_name(type(value))}>"
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    # Addresses would differ at every replay, and with them the hash of the input.
    return _ADDRESS.sub("", text)


def is_sealed(data: bytes) -> bool:
    """Returns whether data begins as payloads of `kagzi.codecs` do, and no JSON does."""
    return data[:1] in (b"\x00", b"\x01", b"\x02", b"\x03", b"\x04")


def reason_of(error: BaseException, data: bytes = b"") -> str:
    """Returns what is wrong with this data, for people."""
    if is_sealed(data):
        return SEALED
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)[:500]
