"""The arguments and attributes of an exception as JSON, and back.

They are written as payloads are (`core.values`), and read by annotation where the exception's class has one for them:
in its body, or for the parameter of that name of its `__init__`. Many have none, and what a workflow does with
`e.amount` must not depend on that. So values of the types below say in the stored form what they are, as in
`{"$decimal": "9.90"}`. No class is called because stored data names it: an object whose class no annotation names comes
back as plain data, as payloads do.
"""

from __future__ import annotations

import inspect
import math
import sys
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec

from kagzi.core.classes import dotted_name, find_class, own_contents
from kagzi.core.survival import field_names, loss, secrets, survives
from kagzi.core.values import class_name, decode_other, encode_other, supported, to_builtins

VALUE_DEPTH: Final = 8
_VALUE_ITEMS: Final = 1_000
_LEAVES: Final[dict[type[Any], str]] = {
    Decimal: "$decimal",
    datetime: "$datetime",
    date: "$date",
    time: "$time",
    timedelta: "$timedelta",
    UUID: "$uuid",
    bytes: "$bytes",
    Path: "$path",
}
_CONTAINERS: Final[dict[type[Any], str]] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_LEAF_OF: Final = {tag: cls for cls, tag in _LEAVES.items()}
_CONTAINER_OF: Final = {tag: cls for cls, tag in _CONTAINERS.items()}


class NotStorable(Exception):
    """The value cannot be stored; the message says what it is."""


def clean_text(value: str) -> str:
    """Returns the text as every database and JSON reader takes it: without NUL and half surrogate pairs."""
    if "\0" in value:
        value = value.replace("\0", "\\0")
    if not value.isascii():
        value = value.encode("utf-8", "backslashreplace").decode()
    return value


# Writing.


def store(value: Any, depth: int = 0) -> Any:
    """Returns a copy of the value as JSON data, harmless in every database, or raises NotStorable."""
    cls = type(value)
    if cls is str:
        return clean_text(value)
    if cls is bool or value is None:
        return value
    if cls is int:
        return value if -(1 << 63) <= value < 1 << 63 else {"$int": str(value)}
    if cls is float:
        if not math.isfinite(value):
            raise NotStorable(f"{value}, and JSON has no such number")
        return value
    if depth > VALUE_DEPTH:
        raise NotStorable(f"a value nested more than {VALUE_DEPTH} levels deep")
    if cls in _LEAVES:
        return {_LEAVES[cls]: to_builtins(value)}
    if cls is list or cls is tuple or cls is set or cls is frozenset:
        _check_size(value)
        items = [store(item, depth + 1) for item in value]
        return items if cls is list else {_CONTAINERS[cls]: items}
    if cls is dict:
        return _store_mapping(value, depth)
    return _store_other(value, depth)


def _store_mapping(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    _check_size(value)
    stored = {clean_text(str(_key(key))): store(item, depth + 1) for key, item in value.items()}
    if len(stored) < len(value):
        raise NotStorable("a dict of which two keys are the same in JSON")
    return {"$dict": stored} if _tag(stored) is not None else stored


def _store_other(value: Any, depth: int) -> Any:
    if isinstance(value, Enum):
        return {"$enum": [dotted_name(type(value)), value.name]}
    if isinstance(value, PurePath):
        return {"$path": clean_text(str(value))}
    if next(secrets(value), None) is not None:
        raise NotStorable(f"a {class_name(type(value))} with a secret in it")
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    try:
        data = to_builtins(value) if field_names(value) is not None else encode_other(value)
    except Exception:
        raise NotStorable(f"a {class_name(type(value))}") from None
    return store(data, depth + 1)


def _check_size(value: Any) -> None:
    if len(value) > _VALUE_ITEMS:
        raise NotStorable(f"a {class_name(type(value))} of {len(value):,} items")


def _key(key: Any) -> Any:
    if type(key) is str:
        return key
    try:
        (said,) = to_builtins({key: None})
    except Exception:
        raise NotStorable(f"a dict with keys of type {class_name(type(key))}") from None
    return said


def _tag(data: Mapping[str, Any]) -> str | None:
    """Returns the only key of a dict, if it looks like one of ours."""
    if len(data) != 1:
        return None
    (key,) = data
    return key if type(key) is str and key.startswith("$") else None


# Reading.


def revive(data: Any) -> Any:
    """Returns what `store` was given. What it did not write is left as it is."""
    if type(data) is list:
        return [revive(item) for item in data]
    if type(data) is not dict:
        return data
    tag = _tag(data)
    if tag is not None:
        try:
            return _revive_tagged(tag, data[tag])
        except Exception:
            return data
    return {key: revive(item) for key, item in data.items()}


def _revive_tagged(tag: str, data: Any) -> Any:
    if tag == "$dict":
        return {key: revive(item) for key, item in data.items()}
    if tag == "$int":
        return int(data)
    if tag == "$enum":
        return _member(*data)
    if tag in _CONTAINER_OF:
        return _CONTAINER_OF[tag](revive(data))
    return msgspec.convert(data, _LEAF_OF[tag], dec_hook=decode_other)


def _member(cls_name: str, name: str) -> Enum:
    cls = find_class(cls_name)
    if cls is None or not issubclass(cls, Enum):
        raise LookupError(cls_name)
    members: Any = own_contents(cls)["_member_map_"]
    member: Enum = members[name]
    return member


def read_attribute(cls: type[BaseException], name: str, data: Any) -> Any:
    """Returns the attribute as the class annotates it, if it does and the value fits."""
    value = revive(data)
    types = _types_of(cls)
    if not types or value is None:
        return value
    annotation = types.get(name, types.get(name.lstrip("_"), Any))
    if annotation is Any or type(value) is annotation:
        return value
    try:
        return msgspec.convert(value, annotation, dec_hook=decode_other, str_keys=True)
    except Exception:
        return value


def store_attribute(exc: BaseException, name: str, value: Any) -> Any:
    """Returns the attribute as `read_attribute` takes it, or raises NotStorable if it would not come back."""
    stored = store(value)
    copy = read_attribute(type(exc), name, stored)
    if not survives(value, copy) and (lost := loss(value, copy)) is not None:
        raise NotStorable(f"a {class_name(type(value))}: {lost}")
    return stored


_TYPES: WeakKeyDictionary[type[BaseException], dict[str, Any]] = WeakKeyDictionary()


def _types_of(cls: type[BaseException]) -> dict[str, Any]:
    """Returns the types of attributes by name, as far as annotations tell them."""
    types = _TYPES.get(cls)
    if types is None:
        types = {}
        for base in reversed(cls.__mro__):
            init = own_contents(base).get("__init__")
            if inspect.isfunction(init):
                types.update(_resolved(init, init.__globals__))
            if "__annotations__" in own_contents(base) or "__annotate_func__" in own_contents(base):
                types.update(_resolved(base, vars(sys.modules.get(base.__module__, sys))))
        types.pop("return", None)
        _TYPES[cls] = types
    return types


def _resolved(annotated: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        annotations = dict(inspect.get_annotations(annotated))
    except Exception:
        return {}  # Python 3.14 evaluates them here, and not all names need exist
    types: dict[str, Any] = {}
    for key, annotation in annotations.items():
        holder = SimpleNamespace(__annotations__={key: annotation})
        try:
            found = typing.get_type_hints(holder, dict(names), dict(names), include_extras=True)[key]
            types[key] = supported(found)
        except Exception:
            continue  # a name that only type checkers see: read by what the stored form says
    return types


_SLOTS: WeakKeyDictionary[type[BaseException], tuple[str, ...]] = WeakKeyDictionary()


def slots_of(cls: type[BaseException]) -> tuple[str, ...]:
    slots = _SLOTS.get(cls)
    if slots is None:
        names: list[str] = []
        for base in cls.__mro__:
            own: Any = base.__dict__.get("__slots__", ())
            names.extend([own] if isinstance(own, str) else [name for name in own if isinstance(name, str)])
        slots = _SLOTS[cls] = tuple(name for name in names if name not in ("__dict__", "__weakref__"))
    return slots


def attributes_of(exc: BaseException) -> Iterator[tuple[str, Any]]:
    for key, value in list(exc.__dict__.items()):
        if isinstance(key, str):
            yield key, value
    for key in slots_of(type(exc)):
        try:
            yield key, object.__getattribute__(exc, key)
        except AttributeError:
            pass
