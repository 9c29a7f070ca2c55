"""The one form of a value that is compared or hashed, whatever the process and the order in which it was made.

What is stored stays as its program wrote it, except for sets: these have no order of their own, and Python gives them
another one in every process, so they are written in order. Dicts keep theirs, which programs may rely on; only where
two values are compared, their keys are sorted.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import types
import typing
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import msgspec

from kagzi.core.values import UNREADABLE, encode_other, to_builtins

_SCALARS: Final = frozenset({int, float, str, bool, types.NoneType, bytes, datetime, date, time, timedelta, UUID})
# JSON says each value of these in one way only.
_STEADY: Final = (_SCALARS - {float}) | {list, tuple, deque, Sequence}
_ABSTRACT: Final = (Sequence, Mapping, typing.AbstractSet)  # whose values are known by their class
_SETS: Final = (set, frozenset)
_MOST_DIGITS: Final = 400  # of a number that is still compared; no float has more

_in_order = msgspec.json.Encoder(enc_hook=encode_other, order="deterministic").encode


def canonical_json(value: Any, *, has_sets: bool = True) -> bytes:
    """Returns the JSON of a value with its sets and the keys of its dicts sorted. `has_sets=False`: it has none."""
    if has_sets:
        value = with_sets_in_order(value)
    try:
        return _in_order(value)
    except TypeError:  # a key that is no text
        return _in_order(to_builtins(value))


def same_json(one: bytes, other: bytes) -> bool:
    """Returns whether two documents say the same: the order of keys, spaces and how a number is written do not count.

    The rule of jsonb in PostgreSQL, by which starts from SQL are compared. What is no JSON is the same to the byte.
    """
    if one == other:
        return True
    try:
        return _in_order(_read_numbers(one)) == _in_order(_read_numbers(other))
    except UNREADABLE:
        return False


def _number(text: str) -> int | float:
    said = Decimal(text)
    if abs(said.adjusted()) > _MOST_DIGITS:
        raise ValueError(f"{text:.50} is beyond what is compared")
    return int(said) if said == said.to_integral_value() else float(said)


_read_numbers = msgspec.json.Decoder(float_hook=_number).decode


# Sets.


def with_sets_in_order(value: Any) -> Any:
    """Returns the value with sorted lists in the place of its sets, or the value itself if it has none to sort."""
    try:
        return _ordered(value)
    except RecursionError:  # deeper than most, or within itself, which whoever writes it tells
        return value


def _ordered(value: Any) -> Any:
    cls = type(value)
    if cls in _SCALARS:
        return value
    if isinstance(value, _SETS):
        return value if len(value) < 2 else sorted([_ordered(item) for item in value], key=canonical_json)
    if isinstance(value, dict):
        return _mapping_in_order(value)
    if isinstance(value, (list, tuple, deque)):
        if _SCALARS.issuperset(map(type, value)):
            return value
        items = [_ordered(item) for item in value]
        return value if all(map(_is, items, value)) else items
    if (names := _attributes(cls)) is not None:
        return _record_in_order(value, names)
    serializer = getattr(cls, "__pydantic_serializer__", None)
    return value if serializer is None else _model_in_order(value, serializer)


def _is(one: object, other: object) -> bool:
    return one is other


def _mapping_in_order(value: dict[Any, Any]) -> Any:
    if _SCALARS.issuperset(map(type, value.values())):
        return value
    items = {key: _ordered(item) for key, item in value.items()}
    return value if all(map(_is, items.values(), value.values())) else items


def _attributes(cls: type[Any]) -> tuple[str, ...] | None:
    if (fields := getattr(cls, "__struct_fields__", None)) is not None:
        return tuple(fields)
    if dataclasses.is_dataclass(cls):
        return tuple([field.name for field in dataclasses.fields(cls)])
    if (fields := getattr(cls, "__attrs_attrs__", None)) is not None:
        return tuple([field.name for field in fields])
    return None


def _record_in_order(value: Any, names: tuple[str, ...]) -> Any:
    changed = {}
    for name in names:
        item = getattr(value, name, None)
        if (ordered := _ordered(item)) is not item:
            changed[name] = ordered
    if not changed:
        return value
    made = copy.copy(value)
    put = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, ordered in changed.items():
        put(made, name, ordered)
    return made


def _model_in_order(value: Any, serializer: Any) -> Any:
    """Returns what pydantic writes of a model, with the lists sorted that were sets before."""
    said = serializer.to_python(value)
    if type(said) is type(value) or _ordered(said) is said:
        return value
    return _sorted_as(said, serializer.to_python(value, mode="json"))


def _sorted_as(said: Any, plain: Any) -> Any:
    if isinstance(said, _SETS) and isinstance(plain, list):
        return sorted(plain, key=canonical_json)
    if isinstance(said, dict) and isinstance(plain, dict) and len(said) == len(plain):
        return {key: _sorted_as(item, plain[key]) for item, key in zip(said.values(), plain, strict=True)}
    if isinstance(said, (list, tuple, deque)) and isinstance(plain, list) and len(said) == len(plain):
        return [_sorted_as(*pair) for pair in zip(said, plain, strict=True)]
    return plain


# What an annotation allows, looked up once for each function.


class Variety(msgspec.Struct, frozen=True):
    """In how many ways equal values of a type may be written."""

    steady: bool  # in one
    holds_sets: bool  # as they are given, where a type says nothing perhaps
    reads_sets: bool  # as they are read back, where what has no type is plain data


def variety_of(annotations: Iterable[Any]) -> Variety:
    seen: set[int] = set()
    leaves = [leaf for annotation in annotations for leaf in _leaves(annotation, seen)]
    reads_sets = any([issubclass(leaf, (typing.AbstractSet, _Unknown)) for leaf in leaves])
    return Variety(
        steady=all([leaf in _STEADY or issubclass(leaf, (enum.Enum, PurePath)) for leaf in leaves]),
        holds_sets=reads_sets or object in leaves,
        reads_sets=reads_sets,
    )


class _Unknown:
    """Stands for what nobody can say of a type."""


def _leaves(annotation: Any, seen: set[int]) -> Iterator[type[Any]]:
    """Yields the classes that values of this type are made of; `object` is plain data of any kind."""
    if id(annotation) in seen or annotation is None:
        return
    seen.add(id(annotation))
    if not isinstance(annotation, type):  # a NewType or an alias, perhaps
        inner = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
        if inner is not None:
            yield from _leaves(inner, seen)
            return
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return
    if origin is typing.Annotated:
        yield from _leaves(args[0], seen)
        return
    cls = origin or annotation
    if cls not in (typing.Union, types.UnionType):
        if cls is Any or cls is object:
            yield object
        elif not isinstance(cls, type) or (inspect.isabstract(cls) and not issubclass(cls, _ABSTRACT)):
            yield _Unknown
        elif _is_record(cls):
            yield from _leaves_of_record(cls, seen)
        else:
            yield cls
            if not args and cls not in _SCALARS and issubclass(cls, (list, tuple, deque, *_ABSTRACT)):
                yield object  # items that nobody has named
    for arg in args:
        if arg is not Ellipsis:
            yield from _leaves(arg, seen)


def _is_record(cls: type[Any]) -> bool:
    return (
        _attributes(cls) is not None
        or hasattr(cls, "__pydantic_fields__")
        or typing.is_typeddict(cls)
        or hasattr(cls, "_fields")
    )


def _leaves_of_record(cls: type[Any], seen: set[int]) -> Iterator[type[Any]]:
    if typing.is_typeddict(cls):
        yield dict
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # names that are not there, in annotations of the user's
        yield _Unknown
        return
    config = getattr(cls, "model_config", None)
    if isinstance(config, Mapping) and config.get("extra") == "allow":
        yield object
    for name, hint in hints.items():
        if typing.get_origin(hint) is not typing.ClassVar and hint is not typing.ClassVar and name != "model_config":
            yield from _leaves(hint, seen)
    if not hints and hasattr(cls, "_fields"):
        yield object


def canonical_or_none(value: Any) -> bytes | None:
    """Returns the canonical form of a value; None if JSON cannot hold it."""
    try:
        return canonical_json(value)
    except Exception:
        return None
