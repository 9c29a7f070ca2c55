"""The sources of values: flags, the environment, kagzi.toml or [tool.kagzi] of pyproject.toml."""

from __future__ import annotations

import difflib
import logging
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kagzi.owners import read_trusted
from kagzi.settings.fields import PREFIX, is_secret, key, variable
from kagzi.settings.table import GROUPS, Settings

FILE_NAME: Final = "kagzi.toml"
SHARED_FILE_NAME: Final = "pyproject.toml"
DATA_DIRECTORY: Final = ".kagzi"
_SECRET_BYTES: Final = 64 * 1024
_PROJECT_FILE_BYTES: Final = 1024 * 1024
log = logging.getLogger("kagzi")


class Flag(Struct, frozen=True):
    """A value given on the command line; None was not given."""

    name: str
    value: object


Given = dict[str, tuple[str, object]]  # by field: the source and the value


def from_flags(flags: Mapping[str, Flag]) -> Given:
    return {field: (flag.name, flag.value) for field, flag in flags.items() if flag.value is not None}


# What Kubernetes puts into every container beside a Service whose name begins with "kagzi".
_KUBERNETES_NAME = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_KUBERNETES_VALUE = re.compile(r"^(tcp|udp|sctp)://")
# What one process of Kagzi tells another; no settings.
_BETWEEN_OURS: Final = frozenset({"KAGZI_WORKER_CHILD", "KAGZI_DEV_URL"})
_RETIRED = re.compile(r"^KAGZI_(SCHEDULER|WATCHDOG)_(\w+)$")


def from_environment(environ: Mapping[str, str], problems: list[str]) -> Given:
    fields = {variable(field): field for field in Settings.__struct_fields__}
    given: Given = {}
    for name in sorted(name for name in environ if name.startswith(PREFIX)):
        value = environ[name].strip()
        if name in _BETWEEN_OURS:
            continue
        if name.startswith("KAGZI_TEST_") or _KUBERNETES_VALUE.match(value) or _KUBERNETES_NAME.search(name):
            continue
        field = fields.get(name)
        from_file = fields.get(name.removesuffix("_FILE")) if name.endswith("_FILE") else None
        if field is not None:
            if value:
                given[field] = (name, value)
        elif from_file is not None and is_secret(from_file):
            if not value:
                continue
            if environ.get(variable(from_file), "").strip():
                problems.append(f"{variable(from_file)} and {name} are both set; one of them has to go")
            elif (text := read_secret(name, value, problems)) is not None:
                given[from_file] = (name, text)
        else:
            problems.append(_unknown_variable(name, fields))
    return given


def _unknown_variable(name: str, fields: Mapping[str, str]) -> str:
    if retired := _RETIRED.match(name):
        replacement = f"KAGZI_COORDINATOR_{retired[2]}"
        return f"{name} was retired; use {replacement if replacement in fields else 'the KAGZI_COORDINATOR_* settings'}"
    close = difflib.get_close_matches(name, fields, n=1, cutoff=0.7)
    advice = f"did you mean {close[0]}?" if close else "docs/settings.md lists all of them"
    return f"{name} is not a setting of Kagzi; {advice}"


def read_secret(name: str, path: str, problems: list[str]) -> str | None:
    """Returns the text of the file that this variable names; None, and what is wrong, if there is none."""
    try:
        with open(path, "rb") as file:
            data = file.read(_SECRET_BYTES + 1)
        text = data.decode().strip()
    except OSError as error:
        problems.append(f"{name} names a file that cannot be read ({error.strerror or type(error).__name__}): {path}")
        return None
    except ValueError:
        problems.append(f"{name} names a file that is not text: {path}")
        return None
    if not text or len(data) > _SECRET_BYTES:
        problems.append(f"{name} names a file that is {'too large' if text else 'empty'}: {path}")
        return None
    return text


def project_directory(start: Path) -> Path:
    """Returns the nearest directory upward that has a `.kagzi/` or a pyproject.toml, else the one we are in."""
    for directory in (start, *start.parents):
        if (directory / DATA_DIRECTORY).is_dir() or (directory / "pyproject.toml").is_file():
            return directory
    return start


def from_file(start: Path, problems: list[str]) -> tuple[Path | None, Given]:
    """Reads kagzi.toml or [tool.kagzi] of pyproject.toml, the nearest one between here and the project's directory."""
    project = project_directory(start)
    for directory in (start, *start.parents):
        own = directory / FILE_NAME
        if own.is_file() and (table := _read_toml(own, problems)) is not None:
            return own, _flatten(table, FILE_NAME, problems)
        shared = directory / SHARED_FILE_NAME
        if shared.is_file() and (table := _read_toml(shared, problems)) is not None:
            tools = table.get("tool")
            ours = tools.get("kagzi") if isinstance(tools, dict) else None
            if ours is not None:
                return shared, _flatten(ours, SHARED_FILE_NAME, problems)
        if directory == project:
            break
    return None, {}


def _read_toml(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Returns what the file says, None if it belongs to another user."""
    try:
        data = read_trusted(path)
        if data is not None:
            return tomllib.loads(data.decode())
        if path.name == FILE_NAME or _mentions_us(path):
            log.warning(
                "%r is ignored because it belongs to another user; if you trust it, make it your own (chown), or set "
                "KAGZI_URL, KAGZI_APP and the like in the environment",
                str(path),
            )
        return None
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror or type(error).__name__}")
    except (ValueError, RecursionError) as error:  # malformed, or not UTF-8
        problems.append(f"{path} is not valid TOML: {error}")
    return {}


def _mentions_us(shared: Path) -> bool:
    with shared.open("rb") as file:
        return b"tool.kagzi" in file.read(_PROJECT_FILE_BYTES)


def _flatten(table: object, file: str, problems: list[str]) -> Given:
    fields = {key(field): field for field in Settings.__struct_fields__}
    given: Given = {}
    if not isinstance(table, dict):
        problems.append(f"tool.kagzi in {file} must be a table")
        return given
    entries: list[tuple[str, object]] = []
    for name, value in table.items():
        if name in GROUPS and isinstance(value, dict):
            entries += [(f"{name}.{inner}", entry) for inner, entry in value.items()]
        else:
            entries.append((name, value))
    for name, value in entries:
        field = fields.get(name)
        if field is not None:
            given[field] = (file, value)
            continue
        close = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(fields)}"
        problems.append(f"{name} in {file} is not a setting of Kagzi; {advice}")
    return given
