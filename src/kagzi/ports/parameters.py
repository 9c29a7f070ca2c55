"""What a workflow takes, read from its JSON Schema for forms and commands; an input taken apart into its arguments, and
put together again.

A schema comes from a worker, which may be written in any language, so nothing in it is relied on: what is not
understood is any JSON. Whether an input fits is decided by the worker; here only what the schema says plainly is
checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, assert_never

import msgspec
from msgspec import Struct

from kagzi.core.inputs import POSITIONAL
from kagzi.core.laid_out import check_json, whole

_DEEPEST: Final = 10  # references from one to the next
_MOST: Final = 100  # parameters; forms have bounds, too
_MOST_CHOICES: Final = 200
_PARTS: Final = 8  # of an object that are named
_LONGEST: Final = 64 * 1024  # characters of JSON that stands in a field of one line
_SHOWN: Final = 60  # characters of a default or a choice in a sentence
_BOUNDS: Final = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
)
_FORMATS: Final = {
    "date": "date, such as 2026-11-18",
    "date-time": "moment, such as 2026-11-18T09:00:00Z",
    "time": "time of day, such as 09:00:00",
    "duration": "length of time, such as PT1H30M",
    "uuid": "UUID",
    "decimal": "decimal number",
    "email": "e-mail address",
    "uri": "URL",
}


class Kind(StrEnum):
    """How a value is written into a form."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    CHOICE = "choice"
    JSON = "json"


class Unfit(ValueError):
    """Raised for a text that is not what its parameter takes."""


class Parameter(Struct, frozen=True, kw_only=True):
    """`choices` are JSON. `default` is JSON, too; None: there is none, or it is not told. `words` say what it takes."""

    name: str
    kind: Kind
    words: str
    about: str = ""
    required: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    bounds: dict[str, Any] = {}
    format: str = ""

    def read(self, written: str) -> str:
        """Reads a text as JSON; raises Unfit, with what is accepted."""
        match self.kind:
            case Kind.TEXT:
                self._check_bounds(len(written), ("minLength", "maxLength"))
                return _json(written)
            case Kind.CHOICE:
                if written not in self.choices:
                    shown = ", ".join([spoken(each) for each in self.choices[:20]])
                    raise Unfit(f"{self.name} must be one of {shown}")
                return written
            case Kind.INTEGER | Kind.NUMBER:
                return self._read_number(written.strip())
            case Kind.JSON:
                return self._read_json(written)
            case _:
                assert_never(self.kind)

    def write(self, value: str) -> str | None:
        """Returns what a form shows for this JSON; None if its field cannot hold it."""
        if value == "null" and self.kind is not Kind.JSON and value not in self.choices:
            return "" if not self.required and self.default in (None, "null") else None
        if self.kind is Kind.JSON:
            return whole(value)
        if len(value) > _LONGEST:
            return None
        read = msgspec.json.decode(value)
        match self.kind:
            case Kind.TEXT:
                return read if isinstance(read, str) and read else None
            case Kind.CHOICE:
                return next((each for each in self.choices if msgspec.json.decode(each) == read), None)
            case Kind.INTEGER | Kind.NUMBER:
                return value if isinstance(read, (int, float)) and not isinstance(read, bool) else None
            case _:
                assert_never(self.kind)

    def _read_json(self, written: str) -> str:
        read = read_json(written, self.name)
        begins = "[" if self.words.startswith("JSON array") else "{" if self.words.startswith("JSON object") else ""
        if not read.lstrip().startswith(begins) and not (self.nullable and read.strip() == "null"):
            raise Unfit(f"{self.name} must be a {self.words}, not {written[:_SHOWN]!r}")
        return read

    def _read_number(self, written: str) -> str:
        try:
            number = msgspec.json.decode(written, type=int if self.kind is Kind.INTEGER else int | float)
        except (msgspec.DecodeError, UnicodeEncodeError):
            raise Unfit(f"{self.name} must be {self.words}, not {written[:_SHOWN]!r}") from None
        self._check_bounds(number, ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"))
        return written

    def _check_bounds(self, number: float, names: tuple[str, ...]) -> None:
        fits = {
            "minimum": lambda bound: number >= bound,
            "exclusiveMinimum": lambda bound: number > bound,
            "maximum": lambda bound: number <= bound,
            "exclusiveMaximum": lambda bound: number < bound,
            "minLength": lambda bound: number >= bound,
            "maxLength": lambda bound: number <= bound,
        }
        for name in names:
            if name in self.bounds and not fits[name](self.bounds[name]):
                raise Unfit(f"{self.name} must be {self.words}")


class Parameters(Struct, frozen=True, kw_only=True):
    """What a workflow takes. The first `positional` of them may be given by position; `others`: also by names that are
    not listed."""

    items: tuple[Parameter, ...]
    positional: int = 0
    others: bool = False

    def assemble(self, given: Mapping[str, str]) -> bytes:
        """Returns the input of a run made of JSON by parameter, as the SDK writes the same call: an id that is used
        again finds its run."""
        names = [each.name for each in self.items if each.name in given]
        if len(names) == len(given) and names == [each.name for each in self.items[: self.positional]][: len(names)]:
            return f"[{','.join([given[name] for name in names])}]".encode()
        ordered = [*names, *[name for name in given if name not in names]]
        return f"{{{','.join([f'{_json(name)}:{given[name]}' for name in ordered])}}}".encode()

    def spread(self, data: bytes) -> dict[str, str] | None:
        """Returns the arguments of an input by name, as JSON; None if it does not fit these parameters."""
        try:
            raw = msgspec.json.decode(data, type=msgspec.Raw)
            first = bytes(raw).lstrip()[:1]
            if first == b"[":
                values = [bytes(each).decode() for each in msgspec.json.decode(data, type=list[msgspec.Raw])]
                if len(values) <= self.positional:
                    return dict(zip([each.name for each in self.items], values, strict=False))
            elif first == b"{":
                named = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
                if self.others or named.keys() <= {each.name for each in self.items}:
                    return {name: bytes(each).decode() for name, each in named.items()}
            elif data.strip() == b"null":
                return {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        # The bare value of a function of one parameter.
        return {self.items[0].name: bytes(raw).decode()} if len(self.items) == 1 else None


def read_parameters(schema: str | None) -> Parameters | None:
    """Reads parameters from a schema; None if there is none, or it does not describe an object of parameters."""
    try:
        root = msgspec.json.decode(schema or "null")
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(root, dict) or not isinstance(root.get("properties"), dict):
        return None
    properties: dict[str, Any] = root["properties"]
    if len(properties) > _MOST:
        return None
    required = root.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    items = tuple([_parameter(name, schema, name in needed, root) for name, schema in properties.items()])
    positional = root.get(POSITIONAL, 0)
    return Parameters(
        items=items,
        positional=positional if isinstance(positional, int) and 0 <= positional <= len(items) else 0,
        others=root.get("additionalProperties", False) is not False,
    )


def spoken(value: str) -> str:
    """Returns JSON as part of a sentence: text without quotes, and not too much of it."""
    read = msgspec.json.decode(value) if value.startswith('"') else ""
    text = read or value
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def read_json(written: str, name: str) -> str:
    """Checks that a text is JSON, and returns it as it was written."""
    try:
        check_json(written.encode())
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Unfit(f'{name} is not JSON: {error}. Text needs quotes, as in "yes"') from None
    except RecursionError:
        raise Unfit(f"{name} is nested too deeply") from None
    return written


def _parameter(name: str, schema: Any, required: bool, root: dict[str, Any]) -> Parameter:
    outer = schema if isinstance(schema, dict) else {}
    found, nullable = _plain(outer, root)
    choices = _choices(found)
    kind, words = _kind(found, choices)
    bounds = {
        key: found[key]
        for key, _ in _BOUNDS
        if isinstance(found.get(key), (int, float)) and not isinstance(found[key], bool)
    }
    limits = [says.format(bounds[key]) for key, says in _BOUNDS if key in bounds]
    about = outer.get("description", found.get("description") if kind is not Kind.JSON else None)
    return Parameter(
        name=name,
        kind=kind,
        words=", ".join([words, *limits]),
        about=about if isinstance(about, str) else "",
        required=required,
        nullable=nullable,
        choices=(*choices, "null") if choices and nullable and "null" not in choices else choices,
        default=_json(outer["default"]) if not required and "default" in outer else None,
        bounds=bounds,
        format=str(found.get("format", "")) if kind is Kind.TEXT else "",
    )


def _plain(schema: dict[str, Any], root: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema behind references and beside null, and whether null is accepted, too."""
    nullable = False
    for _ in range(_DEEPEST):
        if isinstance(reference := schema.get("$ref"), str):
            schema = _referred(reference, root)
            continue
        variants = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(variants, list):
            others = [each for each in variants if isinstance(each, dict) and each.get("type") != "null"]
            nullable = nullable or len(others) < len(variants)
            if len(others) != 1:
                return schema, nullable
            schema = others[0]
            continue
        kinds = schema.get("type")
        if isinstance(kinds, list) and "null" in kinds and len(kinds) == 2:
            nullable = True
            schema = {**schema, "type": next(each for each in kinds if each != "null")}
        return schema, nullable
    return {}, nullable


def _referred(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    definitions = root.get("$defs")
    found = definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, dict) else None
    return found if isinstance(found, dict) else {}


def _choices(schema: dict[str, Any]) -> tuple[str, ...]:
    if schema.get("type") == "boolean":
        return ("true", "false")
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not 0 < len(values) <= _MOST_CHOICES:
        return ()
    return tuple([_json(each) for each in values])


def _kind(schema: dict[str, Any], choices: tuple[str, ...]) -> tuple[Kind, str]:
    if choices:
        return Kind.CHOICE, "true or false" if schema.get("type") == "boolean" else "one of a list"
    match schema.get("type"):
        case "string":
            if schema.get("contentEncoding"):
                return Kind.TEXT, f"bytes in {schema['contentEncoding']}"
            return Kind.TEXT, _FORMATS.get(str(schema.get("format")), "text")
        case "integer":
            return Kind.INTEGER, "integer"
        case "number":
            return Kind.NUMBER, "number"
        case "array":
            return Kind.JSON, "JSON array"
        case "object":
            title = schema.get("title")
            named = f"JSON object {title}" if isinstance(title, str) and title else "JSON object"
            return Kind.JSON, f"{named}: {parts}" if (parts := _parts(schema)) else named
        case _:
            return Kind.JSON, "JSON"


def _parts(schema: dict[str, Any]) -> str:
    """The names of what is in an object."""
    properties, needed = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return ""
    required = needed if isinstance(needed, list) else []
    said = [name if name in required else f"{name} (optional)" for name in list(properties)[:_PARTS]]
    return ", ".join(said) + (", …" if len(properties) > _PARTS else "")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
