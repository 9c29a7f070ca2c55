"""Classes by their dotted names, as errors are stored with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def dotted_name(cls: type[Any]) -> str:
    """Returns `module.QualName`, the name of a class in storage and on the wire."""
    return f"{cls.__module__}.{cls.__qualname__}"


def find_class(name: str) -> type[Any] | None:
    """Returns the class of this dotted name, if its module is loaded.

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
    return found if issubclass(type(found), type) else None  # type: ignore[return-value]


def _contents(holder: object) -> Mapping[str, object]:
    """Returns the names and values in a module or class. Asks for the real type: `isinstance` would ask an object for
    its `__class__`."""
    if issubclass(type(holder), type):
        return own_contents(holder)
    if issubclass(type(holder), ModuleType):
        contents: dict[str, object] = object.__getattribute__(holder, "__dict__")
        return contents
    return {}


# What stands in a class itself, whatever its metaclass would answer.
own_contents: Callable[[Any], Mapping[str, object]] = type.__dict__["__dict__"].__get__
