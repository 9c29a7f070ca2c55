"""Reads the input of a run by the JSON Schema that a worker told of its workflow.

The schema describes the parameters as an object by name, and `x-kagzi-positional` in it says how many of them may be
given by position. What it does not say plainly is left to the worker: a word of JSON Schema that is not known here, a
pattern, a class of a library that reads more than its schema says (`x-kagzi-lax`). So an input that is refused here
would be refused by the worker, too, and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

POSITIONAL: Final = "x-kagzi-positional"
LAX: Final = "x-kagzi-lax"
_SHOWN: Final = 60  # characters of a value in a sentence
_LISTED: Final = 12  # parameters and choices in a sentence
_DEEPEST: Final = 100
_WORDS: Final = {
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Final[tuple[tuple[str, str, Callable[[Any, Any], bool]], ...]] = (
    ("minimum", "at least", lambda value, bound: value >= bound),
    ("maximum", "at most", lambda value, bound: value <= bound),
    ("exclusiveMinimum", "more than", lambda value, bound: value > bound),
    ("exclusiveMaximum", "less than", lambda value, bound: value < bound),
)


class Misfit(ValueError):
    """Raised for an input that no call of the workflow has; says why."""


class InputReader:
    """Reads inputs of one workflow."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._parameters: dict[str, Any] = schema["properties"]
        self._names = tuple(self._parameters)
        positional = schema.get(POSITIONAL, 0)
        self._positional = positional if isinstance(positional, int) else 0
        self._others = schema.get("additionalProperties", False) is not False
        # `*args`, or a list that can only be given by name, which a schema does not tell apart.
        self._rest = any(
            isinstance(each, dict) and each.get("type") == "array"
            for each in list(self._parameters.values())[self._positional :]
        )

    def read(self, data: bytes) -> dict[str, Any]:
        """Returns the arguments of an input by name, without those that have defaults; raises Misfit."""
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Misfit(f"it is not JSON: {error}") from None
        except RecursionError:
            raise Misfit("it is nested too deeply") from None
        fit = _Fit(self._schema, 1000 + 10 * len(data))
        problem: str | None = None
        for arguments in self._forms(value):
            trouble = arguments if isinstance(arguments, str) else self._trouble(arguments, fit)
            if trouble is None:
                assert not isinstance(arguments, str)
                return arguments
            problem = problem or trouble
        raise Misfit(problem or "")

    def default(self, parameter: str) -> Any:
        """Returns the default of a parameter as JSON; KeyError if none was told."""
        return self._parameters[parameter]["default"]

    def _forms(self, value: Any) -> Iterator[dict[str, Any] | str]:
        """Yields what the input may stand for: arguments by name, or why they are none."""
        bare = len(self._names) == 1 and not self._others
        if isinstance(value, list):
            if len(value) <= self._positional:
                yield dict(zip(self._names, value, strict=False))
            elif self._rest:
                yield dict(zip(self._names[: self._positional], value, strict=False))
            else:
                yield f"it has {len(value):,} arguments by position, and {self._takes(self._positional)}"
        elif isinstance(value, dict):
            wrong = next((name for name in value if name not in self._parameters), None)
            yield value if wrong is None or self._others else f"it has no argument {wrong[:_SHOWN]!r}; {self._takes()}"
        elif value is None:
            yield {}
        elif not bare:
            yield f"it is neither an array of arguments by position nor an object by name; {self._takes()}"
        if bare:
            yield {self._names[0]: value}  # the bare value of a workflow with one parameter

    def _trouble(self, arguments: Mapping[str, Any], fit: _Fit) -> str | None:
        required, others = self._schema.get("required"), self._schema.get("additionalProperties")
        for name in required if isinstance(required, list) else ():
            if name not in arguments:
                return f"argument {name!r} is missing; {self._takes()}"
        for name, value in arguments.items():
            trouble = fit.trouble(value, self._parameters.get(name, others), f"argument {name!r}", 0)
            if trouble is not None:
                return trouble
        return None

    def _takes(self, most: int | None = None) -> str:
        names = self._names[:most]
        if not names:
            return "the workflow takes none" if most is None or not self._names else "none may be given by position"
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        return f"the workflow takes {', '.join(names[:_LISTED])}{more}"


class _Fit:
    """Compares values with schemas, so many of them at most: what is left then is left to the worker."""

    def __init__(self, root: Mapping[str, Any], most: int) -> None:
        found = root.get("$defs")
        self._definitions: dict[str, Any] = found if isinstance(found, dict) else {}
        self._left = most

    def trouble(self, value: Any, schema: Any, where: str, depth: int) -> str | None:
        """Returns why a value does not fit; None if it does, or if that is for the worker to say."""
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST or not isinstance(schema, dict) or LAX in schema:
            return None
        if isinstance(reference := schema.get("$ref"), str):
            return self.trouble(value, self._definitions.get(reference.removeprefix("#/$defs/")), where, depth + 1)
        for union in ("anyOf", "oneOf"):
            if isinstance(variants := schema.get(union), list) and variants:
                troubles = [self.trouble(value, each, where, depth + 1) for each in variants]
                if None in troubles:
                    return None
                kinds = [_kind(each) for each in variants]
                if None in kinds or len(set(kinds)) == 1:
                    return troubles[0] if len(variants) == 1 else f"{where} fits none of its kinds: {troubles[0]}"
                return f"{where} must be {' or '.join(_WORDS[each] for each in kinds if each)}, not {_shown(value)}"
        if "const" in schema or isinstance(schema.get("enum"), list):
            choices = [schema["const"]] if "const" in schema else schema["enum"]
            if not any(_same(value, each) for each in choices):
                shown = ", ".join(map(_shown, choices[:_LISTED]))
                return f"{where} must be {'one of ' if len(choices) > 1 else ''}{shown}, not {_shown(value)}"
        kind = _kind(schema)
        if kind is not None and not _is(value, kind, schema):
            return f"{where} must be {_WORDS[kind]}, not {_shown(value)}"
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            return _beyond(value, schema, where)
        if isinstance(value, str):
            return _beyond(len(value), _lengths(schema, "Length"), f"the length of {where}")
        if isinstance(value, list):
            return self._in_array(value, schema, where, depth)
        return self._in_object(value, schema, where, depth) if isinstance(value, dict) else None

    def _in_array(self, value: list[Any], schema: dict[str, Any], where: str, depth: int) -> str | None:
        trouble = _beyond(len(value), _lengths(schema, "Items"), f"the length of {where}")
        first = schema.get("prefixItems")
        first = first if isinstance(first, list) else []
        for number, each in enumerate(value):
            if trouble is not None:
                return trouble
            item = first[number] if number < len(first) else schema.get("items")
            trouble = self.trouble(each, item, f"item {number} of {where}", depth + 1)
        return trouble

    def _in_object(self, value: dict[str, Any], schema: dict[str, Any], where: str, depth: int) -> str | None:
        required, known, others = schema.get("required"), schema.get("properties"), schema.get("additionalProperties")
        known = known if isinstance(known, dict) else {}
        for name in required if isinstance(required, list) else ():
            if name not in value:
                return f"{where} has no {name!r}"
        for name, each in value.items():
            if name not in known and others is False:
                return f"{where} has {name[:_SHOWN]!r}, which is none of its fields"
            trouble = self.trouble(each, known.get(name, others), f"{name[:_SHOWN]!r} of {where}", depth + 1)
            if trouble is not None:
                return trouble
        return None


@lru_cache(maxsize=64)
def input_reader(schema: str) -> InputReader | None:
    """Returns a reader by a schema; None if that does not describe an object of parameters."""
    try:
        read = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return None
    return InputReader(read) if isinstance(read, dict) and isinstance(read.get("properties"), dict) else None


def _kind(schema: Any) -> str | None:
    """Returns the JSON type that a schema names, if it is one."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    return kind if isinstance(kind, str) and kind in _WORDS else None


def _is(value: Any, kind: str, schema: dict[str, Any]) -> bool:
    match kind:
        case "string":  # what has a format or an encoding may be written otherwise: a decimal number as a number
            return isinstance(value, str) or (("format" in schema or "contentEncoding" in schema) and value is not None)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return value is None


def _same(value: Any, choice: Any) -> bool:
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)


def _lengths(schema: dict[str, Any], of: str) -> dict[str, Any]:
    bounds = {"minimum": schema.get(f"min{of}"), "maximum": schema.get(f"max{of}")}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _beyond(value: float, schema: Mapping[str, Any], where: str) -> str | None:
    for name, words, fits in _BOUNDS:
        bound = schema.get(name)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and not fits(value, bound):
            return f"{where} must be {words} {bound:,}, not {_shown(value)}"
    return None


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"an {'array' if isinstance(value, list) else 'object'} of {len(value):,}"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
