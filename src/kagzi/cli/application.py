"""Finds the app that a command is about: `module:attribute`, `path.py` or `path.py:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import click

from kagzi.app import Kagzi
from kagzi.core.printable import printable
from kagzi.errors import InvalidRequest

_FORMS = "module:attribute, path.py or path.py:attribute"


class Unimportable(InvalidRequest):
    """Raised for an app that is there and fails when it is imported: a file of the app is wrong, not the command."""


def load_app(target: str) -> Kagzi:
    """Returns the app; InvalidRequest says which part of the target is wrong."""
    place, _, attribute = target.rpartition(":") if ":" in target else (target, "", "")
    if not place:
        raise InvalidRequest(f"{target!r} does not name an app; accepted: {_FORMS}")
    is_path = place.endswith(".py") or "/" in place or "\\" in place
    module = _from_path(Path(place)) if is_path else _from_name(place)
    return _named(module, place, attribute) if attribute else _only(module, place)


def _from_name(name: str) -> ModuleType:
    # As `python -m` does: what is in the directory we are in can be imported.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"; for the file say {name}.py" if Path(f"{name}.py").is_file() else ""
            raise InvalidRequest(f"there is no module {error.name!r} here or on the Python path{hint}") from None
        raise _broken(name, error) from None
    except InvalidRequest:
        raise
    except Exception as error:
        raise _broken(name, error) from None


def _from_path(path: Path) -> ModuleType:
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise InvalidRequest(f"{path} {what}; accepted: {_FORMS}")
    name = path.stem
    if not name.isidentifier():
        raise InvalidRequest(f"{path} cannot be imported: {name!r} is not a name in Python; rename the file")
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{path} cannot be imported; it must be a Python file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # Under its own name, so that classes in it are found again by their dotted name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        raise _broken(str(path), error) from None
    return module


def _named(module: ModuleType, place: str, attribute: str) -> Kagzi:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = ", ".join(_apps(module)) or "none"
            raise InvalidRequest(f"{place} has no {attribute!r}; apps in it: {apps}")
        found = getattr(found, part)
    if not isinstance(found, Kagzi):
        raise InvalidRequest(f"{place}:{attribute} is a {type(found).__name__}, not a Kagzi app")
    return found


def _only(module: ModuleType, place: str) -> Kagzi:
    apps = _apps(module)
    if "app" in apps:
        return apps["app"]
    if not apps:
        raise InvalidRequest(f"{place} has no Kagzi app; make one there with: app = Kagzi()")
    if len({id(app) for app in apps.values()}) > 1:
        raise InvalidRequest(f"{place} has several apps ({', '.join(apps)}); say which one: {place}:{next(iter(apps))}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, Kagzi]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Kagzi)}


def _broken(place: str, error: Exception) -> Unimportable:
    """Returns the module's own error, from the module's own lines on."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    lines = traceback.format_list(frames) + traceback.format_exception_only(error)
    click.echo(printable("".join(lines).rstrip()), err=True)
    return Unimportable(f"{place} raises {type(error).__name__} when it is imported (see above)")
