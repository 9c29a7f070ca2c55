"""One value <-> JSON, decoded by annotation: what msgspec knows, pydantic's models, and unions of any kind.

What JSON cannot say is not looked for here; `sdk.payload` and `core.survival` refuse it.
"""

from __future__ import annotations

import types
import typing
from collections import deque
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import msgspec
import msgspec.inspect

from kagzi.errors import InvalidRequest


def encode_other(value: Any) -> Any:
    """Encodes what msgspec does not know. Pydantic need not be imported: its models bring their serializer along."""
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
        super().__init__(f"{class_name(type(value))} has no JSON form")


def decode_other(cls: Any, data: Any) -> Any:
    """Decodes what msgspec does not know, as the hook of its decoders."""
    if cls is object:
        return data  # within other types it is what it is alone: JSON
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


def never_rebuilt(annotation: Any) -> type[Any] | None:
    """Returns a class within an annotation of which `decode_other` makes no object, if there is one."""
    if (typing.get_origin(annotation) or annotation) is deque:
        return never_rebuilt(*(typing.get_args(annotation) or (Any,)))
    if annotation is Any or hasattr(annotation, "__pydantic_validator__"):
        return None
    return _never_rebuilt(msgspec.inspect.type_info(supported(annotation)), set())


def _never_rebuilt(found: Any, seen: set[int]) -> type[Any] | None:
    if id(found) in seen:
        return None  # a class may contain itself
    seen.add(id(found))
    if isinstance(found, tuple):
        return next(filter(None, (_never_rebuilt(part, seen) for part in found)), None)
    if isinstance(found, msgspec.inspect.CustomType):
        cls = found.cls
        if isinstance(cls, _Union):
            return next(filter(None, map(never_rebuilt, cls.members)), None)
        # Of a secret the value is refused, with what to do.
        known = any([hasattr(cls, name) for name in ("__pydantic_validator__", "get_secret_value")])
        return None if known or cls in (object, deque) or issubclass(cls, PurePath) else cls
    if isinstance(found, (msgspec.inspect.Type, msgspec.inspect.Field)):
        return _never_rebuilt(tuple([getattr(found, name) for name in _PARTS if hasattr(found, name)]), seen)
    return None


# Where msgspec's description of a type has those that it is made of.
_PARTS = ("type", "types", "item_type", "item_types", "key_type", "value_type", "fields")

to_json = msgspec.json.Encoder(enc_hook=encode_other).encode
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
        """Returns the value by the first member that reads `data` and writes it again unchanged, else by the first that
        reads it."""
        second: list[Any] = []
        for member in cls.members:
            try:
                value = msgspec.convert(data, member, dec_hook=decode_other)
            except (msgspec.ValidationError, ValueError, TypeError):
                continue
            if to_builtins(value) == data:
                return value
            second.append(value)
        if second:
            return second[0]
        raise ValueError(f"fits none of {', '.join(map(show_type, cls.members))}")


def supported(annotation: Any) -> Any:
    """Returns the annotation with stand-ins for the unions that msgspec refuses."""
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


def to_builtins(value: Any) -> Any:
    """Returns the plain data that the value's JSON says."""
    return msgspec.to_builtins(value, enc_hook=encode_other, str_keys=True)


def class_name(cls: type[Any]) -> str:
    name = cls.__qualname__
    return name if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{name}"


def show_type(annotation: Any) -> str:
    return class_name(annotation) if type(annotation) is type else str(annotation)
