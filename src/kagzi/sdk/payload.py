"""One value <-> JSON bytes, decoded by annotation.

Everything durable passes through here: the input of a run, the arguments and the result of a step. What comes
back has the type the annotation names, on the first run as on every replay. Without an annotation it is plain
JSON data: a tuple comes back as a list, a dataclass as a dict.

What JSON cannot say is refused before anything is written: NaN and infinities (msgspec would write null),
objects of unknown classes, unions whose members look the same.
"""

from __future__ import annotations

import math
import re
import types
import typing
from asyncio import Future
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import PurePath
from typing import Any, NoReturn, Protocol

import msgspec

from kagzi.errors import InvalidRequest, NotSerializable

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DEEPEST_LOOK = 10


class Codec(Protocol):
    """A layer around the JSON of every payload, for compression or encryption."""

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> bytes: ...


def decode(data: bytes) -> Any:
    """Plain JSON data, or InvalidRequest."""
    try:
        return read_plain(data)
    except UNREADABLE as error:
        raise InvalidRequest(f"the payload cannot be read as JSON: {reason_of(error)}") from None


def _encode_other(value: Any) -> Any:
    """What msgspec does not know. Pydantic need not be imported: its models bring their serializer along."""
    cls = type(value)
    serializer = getattr(cls, "__pydantic_serializer__", None)
    if serializer is not None:
        return serializer.to_python(value, mode="json")
    for base in (str, int, float):  # subclasses such as numpy.float64
        if isinstance(value, base):
            return base(value)
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, PurePath):
        return str(value)
    raise _Unknown(value)


class _Unknown(TypeError):
    def __init__(self, value: object) -> None:
        super().__init__(f"{_class_name(type(value))} has no JSON form")


def decode_other(cls: Any, data: Any) -> Any:
    """The hook of decoders, for what msgspec does not know."""
    if isinstance(cls, _Union):
        return cls.pick(data)
    validator = getattr(cls, "__pydantic_validator__", None)
    if validator is not None:
        # As JSON and not as Python data: a strict model takes a date from text only there.
        return validator.validate_json(to_json(data))
    if (typing.get_origin(cls) or cls) is deque:
        (item,) = typing.get_args(cls) or (Any,)
        return deque(msgspec.convert(data, list[item], dec_hook=decode_other))  # type: ignore[valid-type]
    if isinstance(cls, type) and issubclass(cls, PurePath):
        return cls(data)
    raise TypeError(f"a {show_type(cls)} cannot be rebuilt from JSON")


to_json = msgspec.json.Encoder(enc_hook=_encode_other).encode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError)


def reader(annotation: Any) -> Callable[[bytes], Any]:
    if annotation is Any or annotation is object:
        return read_plain
    validator = getattr(annotation, "__pydantic_validator__", None)
    if validator is not None and isinstance(annotation, type):
        read: Callable[[bytes], Any] = validator.validate_json
        return read
    try:
        return msgspec.json.Decoder(supported(annotation), dec_hook=decode_other).decode
    except (TypeError, NameError) as error:
        raise InvalidRequest(
            f"the type {show_type(annotation)} cannot be read from JSON: {error}. Use another annotation, or a "
            "tagged msgspec.Struct where a union is meant"
        ) from None


read_plain = msgspec.json.Decoder().decode


# Unions. msgspec takes those it can tell apart by the JSON type or by a tag. For the others (two dataclasses,
# a pydantic model beside an int) a class stands in for the union, and its instances are made by trying the
# members.


class _Union(type):
    """The metaclass of stand-ins for unions."""

    members: tuple[Any, ...]

    def __instancecheck__(cls, instance: Any) -> bool:
        return True  # msgspec checks what the hook returns; `pick` has done so

    def pick(cls, data: Any) -> Any:
        """The first member that reads `data` and writes it again unchanged, else the first that reads it."""
        second: list[Any] = []
        for member in cls.members:
            try:
                value = msgspec.convert(data, member, dec_hook=decode_other)
            except (msgspec.ValidationError, ValueError, TypeError):
                continue
            if _builtins(value) == data:
                return value
            second.append(value)
        if second:
            return second[0]
        raise ValueError(f"fits none of {', '.join(map(show_type, cls.members))}")


def supported(annotation: Any) -> Any:
    """The annotation with stand-ins for the unions that msgspec refuses."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if not args or origin is typing.Literal:
        return annotation
    if origin is typing.Annotated:
        inner = supported(args[0])
        return annotation if inner is args[0] else typing.Annotated[(inner, *args[1:])]
    changed = tuple([supported(arg) if not isinstance(arg, list) else arg for arg in args])
    if origin in (typing.Union, types.UnionType):
        try:
            msgspec.json.Decoder(annotation)
            return annotation
        except TypeError:
            return _Union("Union", (), {"members": changed})
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return annotation
    try:
        return origin[changed]
    except TypeError:
        return annotation


def has_stand_in(annotation: Any) -> bool:
    return isinstance(annotation, _Union) or any(map(has_stand_in, typing.get_args(annotation)))


# What was wrong, for people.


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_encode_other, str_keys=True)


def refuse_nan(value: Any, what: str) -> None:
    for path, item in _walk(_builtins(value)):
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


def refuse(value: Any, what: str, error: Exception) -> NoReturn:
    if isinstance(error, RecursionError):
        raise NotSerializable(f"{what} is nested too deeply for JSON, or contains itself") from None
    refuse_unawaited(value, what)
    path, culprit, reason = _culprit(value, "$", error)
    raise NotSerializable(
        f"{what} cannot be written as JSON: at {path} is {safe_repr(culprit):.100} of type "
        f"{_class_name(type(culprit))} ({reason}). Use plain data, a dataclass or another type JSON can hold"
    ) from None


def refuse_unawaited(value: Any, what: str) -> None:
    """A call without `await` in front of it is a mistake wherever it turns up."""
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
    """The innermost part of a value that cannot be encoded."""
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
        text = f"<{_class_name(type(value))}>"
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    # Addresses would differ at every replay, and with them the hash of the input.
    return _ADDRESS.sub("", text)


def _class_name(cls: type[Any]) -> str:
    name = cls.__qualname__
    return name if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{name}"


def show_type(annotation: Any) -> str:
    return _class_name(annotation) if type(annotation) is type else str(annotation)


def reason_of(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)[:500]
