"""Paths into the arguments of a workflow (`"order.customer.id"`), as they lead through its input.

Starts in Python follow a path through attributes. A start by name has JSON alone, whose fields may have other names, so
a worker tells the path as it is there; or that none is known, and the key of a start by name must be given.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kagzi.core.values import show_type
from kagzi.core.versions import MADE_BY_CODE
from kagzi.errors import InvalidRequest
from kagzi.sdk.limits import Key
from kagzi.sdk.signature import Signature

logger = logging.getLogger("kagzi.worker")

_PLAIN: Final = (str, int, float, bool, bytes)


def told_key(key: Key | None, whose: str, signature: Signature) -> str | None:
    """Returns a key as a worker tells it: its path in the input, or MADE_BY_CODE. Warns of a path that leads nowhere,
    since no start without a key of its own can succeed."""
    if key is None:
        return None
    if callable(key):
        return MADE_BY_CODE
    try:
        annotations = {parameter.name: annotation for parameter, annotation in signature.parameters.typed()}
    except InvalidRequest:  # an annotation that nothing can be read by: starts and runs say so
        return MADE_BY_CODE
    first, *rest = key.split(".")
    written = [first]
    annotation = annotations.get(first, Any)
    for part in rest:
        try:
            found = _field(annotation, part)
        except KeyError as trouble:
            logger.warning("the key %r of %s leads nowhere: %s", key, whose, trouble.args[0])
            return key
        if found is None:
            return MADE_BY_CODE
        name, annotation = found
        written.append(name)
    return MADE_BY_CODE if any("." in name for name in written) else ".".join(written)


def _field(annotation: Any, part: str) -> tuple[str, Any] | None:
    """Returns the name of a field in JSON and its annotation, None if that cannot be told; KeyError, with why, if there
    is none."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _field(args[0], part)
    if origin in (typing.Union, types.UnionType):
        members = [each for each in args if each is not type(None)]
        return _field(members[0], part) if len(members) == 1 else None
    cls = origin or annotation
    if cls is Any or cls is object:
        return part, Any
    if not isinstance(cls, type):
        return None
    if cls in _PLAIN:
        raise KeyError(f"a {show_type(annotation)} has no {part!r}")
    if typing.is_typeddict(cls):
        return _named(cls, part, {name: (name, each) for name, each in typing.get_type_hints(cls).items()})
    if issubclass(cls, Mapping):
        return part, args[1] if len(args) == 2 else Any
    fields = _fields(cls)
    return None if fields is None else _named(cls, part, fields)


def _fields(cls: type[Any]) -> dict[str, tuple[str, Any]] | None:
    """Returns the fields of a class that is an object in JSON, each with its name there; None if it may be none."""
    if issubclass(cls, msgspec.Struct):
        if cls.__struct_config__.array_like:
            return None
        return {each.name: (each.encode_name, each.type) for each in msgspec.structs.fields(cls)}
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        return {each.name: (each.name, hints[each.name]) for each in dataclasses.fields(cls)}
    if getattr(cls, "__pydantic_validator__", None) is not None:
        fields: Mapping[str, Any] = getattr(cls, "model_fields", {})
        plain = [each.alias is None and each.validation_alias is None for each in fields.values()]
        return {name: (name, each.annotation) for name, each in fields.items()} if all(plain) and plain else None
    return None


def _named(cls: type[Any], part: str, fields: Mapping[str, tuple[str, Any]]) -> tuple[str, Any] | None:
    if part in fields:
        return fields[part]
    if hasattr(cls, part) and not typing.is_typeddict(cls):
        return None  # a property, of which only Python knows
    alike = difflib.get_close_matches(part, fields, n=1)
    meant = f"; did you mean {alike[0]!r}?" if alike else ""
    raise KeyError(f"{cls.__name__} has no {part!r}{meant}")
