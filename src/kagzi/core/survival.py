"""Finds what a value loses on its way through JSON.

A value is written, read again by its annotation, and the two are compared. Most are equal, and that is all that is
asked. If they are not, they are walked side by side, because many differences are meant: the annotation `list` makes a
list of a tuple, a field without a type holds a dict where a dataclass was. What is looked for is what vanishes: fields
of a class that derives from the annotated one, keys that a TypedDict does not name, secrets that pydantic writes as
stars.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from kagzi.core.canonical import with_sets_in_order
from kagzi.core.values import class_name, to_builtins, to_json

STARS: Final = b"**********"  # how pydantic writes every secret that is not empty
_ITEMS = (list, tuple, deque, set, frozenset)
_MISSING: Final = object()
_LOOK_ALIKE: Final = (
    "the members of its union look alike. Give them a field that differs (a Literal), or make them "
    "msgspec.Struct classes with a tag"
)


class Loss(Struct, frozen=True):
    """A part of a value that does not come back as it was."""

    path: str
    reason: str  # what happens to it, and what to do

    def __str__(self) -> str:
        return f"at {self.path} is {self.reason}"


def survives(value: Any, copy: Any) -> bool:
    """Returns whether the two are plainly equal. If they are not, `loss` tells whether anything was lost."""
    try:
        return bool(value == copy)
    except Exception:
        return False  # arrays, for example, have no one answer


def loss(value: Any, copy: Any, path: str = "$") -> Loss | None:
    """Returns the first part of the value that its copy lacks or has changed."""
    if value is copy:
        return None
    if is_secret(value):
        return None if survives(value, copy) else Loss(path, secret_reason(value))
    names = field_names(value)
    if names is not None:
        return _loss_of_record(value, names, copy, path)
    if isinstance(value, Mapping):
        return _loss_of_mapping(value, copy, path)
    if isinstance(value, _ITEMS):
        return _loss_of_items(value, copy, path)
    if _alike(value, copy):
        return None
    return Loss(
        path,
        f"a {class_name(type(value))} that comes back as another value, of type {class_name(type(copy))}. "
        "Convert it to plain data yourself, or use another type",
    )


def secrets(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the secrets in a value with their places. In data only: what other objects hold is not written."""
    seen: set[int] = set()  # data may contain itself, until somebody has tried to write it
    ahead = [("$", value)]
    while ahead:
        path, part = ahead.pop()
        if is_secret(part):
            yield path, part
        elif id(part) not in seen:
            seen.add(id(part))
            ahead.extend(reversed(list(_parts(part, path))))


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if (names := field_names(value)) is not None:
        for name in names:
            yield f"{path}.{name}", getattr(value, name, None)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{path}.{key}", item
    elif isinstance(value, _ITEMS):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item


def is_secret(value: Any) -> bool:
    """Returns whether this is one of pydantic's secrets, which need not be imported."""
    return hasattr(type(value), "get_secret_value")


def secret_reason(value: Any) -> str:
    return (
        f"a {class_name(type(value))}, which is written as stars. Pass the name of the secret and read it in the step, "
        "or give its field a serializer that writes it, and the app a codec that encrypts"
    )


def field_names(value: Any) -> tuple[str, ...] | None:
    """Returns the fields of a dataclass, struct, attrs object or pydantic model; None for anything else."""
    cls = type(value)
    if (fields := getattr(cls, "__struct_fields__", None)) is not None:
        return tuple(fields)
    if dataclasses.is_dataclass(cls):
        return tuple([field.name for field in dataclasses.fields(cls)])
    if (fields := getattr(cls, "__attrs_attrs__", None)) is not None:
        return tuple([field.name for field in fields])
    if (fields := getattr(cls, "__pydantic_fields__", None)) is not None:
        return (*fields, *(getattr(value, "__pydantic_extra__", None) or ()))
    return None


def _loss_of_record(value: Any, names: tuple[str, ...], copy: Any, path: str) -> Loss | None:
    copied = field_names(copy)
    if copied is None:
        return None  # plain data, where nothing says which class it was
    cls, other = _generic(type(value)), _generic(type(copy))
    if cls is not other:
        return Loss(path, _other_class(cls, other, [name for name in names if name not in copied]))
    for name in names:
        found = loss(getattr(value, name, None), getattr(copy, name, _MISSING), f"{path}.{name}")
        if found is not None:
            return found
    return None


def _other_class(cls: type[Any], other: type[Any], vanished: list[str]) -> str:
    if not issubclass(cls, other):
        return f"a {class_name(cls)} that comes back as a {class_name(other)}: {_LOOK_ALIKE}"
    without = f" without {', '.join(vanished)}" if vanished else ""
    return (
        f"a {class_name(cls)} that comes back as a {class_name(other)}{without}, because that is the annotation. "
        f"Annotate the class itself, or a union: {other.__name__} | {cls.__name__}"
    )


def _generic(cls: type[Any]) -> type[Any]:
    """Returns the class without its parameters: pydantic makes a class of its own of `Page[int]`."""
    origin: type[Any] | None = (getattr(cls, "__pydantic_generic_metadata__", None) or {}).get("origin")
    return origin or cls


def _loss_of_mapping(value: Mapping[Any, Any], copy: Any, path: str) -> Loss | None:
    if not isinstance(copy, Mapping):
        unknown = [key for key in value if key not in names] if (names := _accepted(copy)) is not None else []
        return _vanished(f"{path}.{unknown[0]}", copy) if unknown else None
    if len(value) != len(copy):
        there = {_key(key) for key in copy}
        for key in value:
            if _key(key) not in there:
                return _vanished(f"{path}.{key}", copy)
        return Loss(path, "a mapping of which two keys are the same in JSON. Use keys of one type")
    for (key, item), again in zip(value.items(), copy.values(), strict=True):  # JSON keeps the order
        found = loss(item, again, f"{path}.{key}")
        if found is not None:
            return found
    return None


def _vanished(path: str, copy: Any) -> Loss:
    kind = "TypedDict" if isinstance(copy, Mapping) else class_name(type(copy))
    return Loss(path, f"a value that the annotation ({kind}) has no field for. Add the field, or leave the value out")


def _accepted(record: Any) -> set[str] | None:
    """Returns the keys that a record is read from, if it passes over others without a word and has no second names."""
    cls = type(record)
    if (fields := getattr(cls, "__struct_encode_fields__", None)) is not None:
        return {*fields, record.__struct_config__.tag_field}
    return None if hasattr(cls, "__pydantic_fields__") or (names := field_names(record)) is None else set(names)


def _key(key: Any) -> Any:
    (text,) = to_builtins({key: None})
    return text


def _loss_of_items(value: Any, copy: Any, path: str) -> Loss | None:
    cls = type(value)
    if isinstance(copy, (set, frozenset)):
        by_json = {to_json(item): item for item in copy}
        some = next(iter(copy), _MISSING)
        pairs = [(item, by_json.get(to_json(item), some if field_names(item) else _MISSING)) for item in value]
    elif isinstance(copy, _ITEMS):
        value = with_sets_in_order(value)  # as it was written
        pairs = list(zip(value, copy, strict=False))
        if len(value) != len(copy):
            return Loss(path, f"a {class_name(cls)} of {len(value)} that comes back with {len(copy)} items")
    else:
        return None
    for index, (item, again) in enumerate(pairs):
        found = None if again is _MISSING else loss(item, again, f"{path}[{index}]")
        if found is not None:
            return found
    return None


def _alike(value: Any, copy: Any) -> bool:
    """Returns whether a leaf came back. A type that the annotation has chosen instead of its own is meant."""
    if isinstance(value, type(copy)):
        if getattr(type(value), "__eq__", None) is object.__eq__:
            return True  # nobody can say
        try:
            return bool(value == copy) or bool(value != value and copy != copy)  # NaN, as a Decimal, equals nothing
        except Exception:
            return True
    if type(copy) is float and isinstance(value, int):
        return copy == value  # beyond 2**53 not every number has a float
    return copy is not _MISSING
