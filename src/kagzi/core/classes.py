"""Classes by their dotted names, as errors are stored with them.

The program that was started is the module `__main__` to itself, and another one to those that import it: `shop` for
`python shop.py`, of which `kagzi worker shop.py` may be the worker. Its classes are stored by the name that others
know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import PurePath
from types import ModuleType
from typing import Any


def dotted_name(cls: type[Any]) -> str:
    """Returns `module.QualName`, the name of a class in storage and on the wire."""
    module = cls.__module__
    return f"{_main_name() if module == '__main__' else module}.{cls.__qualname__}"


def find_class(name: str) -> type[Any] | None:
    """Returns the class of this dotted name, if its module is loaded.

    The name may come from anybody who may report an error, so looking it up runs no code: no `__getattr__` of a
    module, which may import others, and no property. Only what stands in a module or a class itself is found.
    """
    main = _main_name()
    if name.startswith(f"{main}."):  # before a second copy of the program, which something may have imported
        ours = _class_in(sys.modules.get("__main__"), name.removeprefix(f"{main}."))
        if ours is not None:
            return ours
    module_name, _, path = name.rpartition(".")
    while module_name and module_name not in sys.modules:  # a class within a class: the module ends earlier
        module_name, _, part = module_name.rpartition(".")
        path = f"{part}.{path}"
    return _class_in(sys.modules.get(module_name), path)


def _class_in(found: object, path: str) -> type[Any] | None:
    for part in path.split("."):
        found = _contents(found).get(part)
    return found if issubclass(type(found), type) else None  # type: ignore[return-value]


def _main_name() -> str:
    """Returns the name by which others import the program that was started; `__main__` if they cannot."""
    contents = _contents(sys.modules.get("__main__"))
    spec, file = contents.get("__spec__"), contents.get("__file__")
    if type(spec) is ModuleSpec:  # of `python -m`
        return spec.name
    path = PurePath(file if type(file) is str else "")
    return path.stem if path.suffix == ".py" and path.stem.isidentifier() else "__main__"


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
