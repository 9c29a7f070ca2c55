"""Interfaces of workflows: what one is for and what it takes, made of its docstring and annotations, for callers who
start it by name.

A schema describes the parameters as an object by name. What JSON Schema cannot say of an annotation is left open, so
that forms take any JSON there: the worker is the one who reads the input and refuses what does not fit.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Final, Protocol

import msgspec

from kagzi.core.duration import Duration, parse_duration
from kagzi.core.inputs import LAX, POSITIONAL
from kagzi.core.limits import DEFAULT_QUEUE, check_text
from kagzi.core.survival import secrets
from kagzi.core.values import read_plain, supported, to_json
from kagzi.core.versions import (
    SCHEMA_BYTES,
    SCHEMAS_BYTES,
    SUMMARY_CHARACTERS,
    DebounceDefaults,
    StartDefaults,
    WorkflowInterface,
)
from kagzi.errors import InvalidRequest
from kagzi.sdk.debounce import Debounce
from kagzi.sdk.definitions.options import FailureHandler
from kagzi.sdk.key_paths import told_key
from kagzi.sdk.limits import WorkflowLimits
from kagzi.sdk.payload import Codec
from kagzi.sdk.signature import Signature

logger = logging.getLogger("kagzi.worker")

_REFERENCE: Final = "#/$defs/{}"


class Described(Protocol):
    """A workflow as it is described."""

    name: str
    version: str
    queue: str | None
    timeout: Duration | None
    on_failure: FailureHandler | None
    limits: WorkflowLimits | None
    debounce: Debounce | None

    @property
    def signature(self) -> Signature: ...

    @property
    def codec(self) -> Codec | None: ...


def describe_all(workflows: Iterable[Described]) -> tuple[WorkflowInterface, ...]:
    """Describes workflows. Schemas that are too large, alone or together, are left out with a warning."""
    made: list[WorkflowInterface] = []
    total = 0
    for workflow in workflows:
        schema: str | None = input_schema(workflow.signature)
        size = len(schema.encode()) if schema is not None else 0
        if size > SCHEMA_BYTES or total + size > SCHEMAS_BYTES:
            most, whose = (SCHEMA_BYTES, "one") if size > SCHEMA_BYTES else (SCHEMAS_BYTES, "those of a worker")
            logger.warning(
                "the JSON Schema of workflow %s %s is not sent to the engine, so forms that start it take plain JSON: "
                "it has %s bytes, and %s may have %s",
                workflow.name,
                workflow.version,
                f"{size:,}",
                whose,
                f"{most:,}",
            )
            schema, size = None, 0
        total += size
        made.append(
            WorkflowInterface(
                workflow_type=workflow.name,
                version=workflow.version,
                summary=summary_of(workflow),
                input_schema=schema,
                defaults=start_defaults(workflow),
            )
        )
    return tuple(made)


def start_defaults(workflow: Described) -> StartDefaults:
    """Returns what starts by name get, as starts in Python do."""
    limits, debounce, handler = workflow.limits, workflow.debounce, workflow.on_failure
    key = None if limits is None else told_key(limits.key, f"the limits of {workflow.name}", workflow.signature)
    return StartDefaults(
        queue=workflow.queue or DEFAULT_QUEUE,
        on_failure=None if handler is None else handler.name,
        on_failure_queue=None if handler is None else handler.queue,
        timeout=None if workflow.timeout is None else parse_duration(workflow.timeout, "timeout"),
        limit_name=None if limits is None else limits.name,
        limit_key=key,
        debounce=None if debounce is None else _debounce(debounce, workflow),
        codec=workflow.codec is not None,
    )


def _debounce(debounce: Debounce, workflow: Described) -> DebounceDefaults:
    key = debounce.key if debounce.key is None or callable(debounce.key) else str(debounce.key)
    told = told_key(key, f"the debounce of {workflow.name}", workflow.signature)
    return DebounceDefaults(wait=debounce.wait, most=debounce.most, key=told)


def summary_of(function: object) -> str:
    """Returns the first line of a docstring, if it is text that can be stored."""
    said = inspect.cleandoc(getattr(function, "__doc__", None) or "").partition("\n")[0].strip()
    try:
        check_text(said, "docstring")
    except InvalidRequest:
        return ""
    return said if len(said) <= SUMMARY_CHARACTERS else f"{said[: SUMMARY_CHARACTERS - 1]}…"


def input_schema(signature: Signature) -> str | None:
    """Returns a JSON Schema of the parameters; None if it cannot be written."""
    try:
        parameters = signature.parameters.typed()
    except InvalidRequest:  # an annotation that nothing can be read by: starts and runs say so
        return None
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    more: Any = False
    positional = 0
    for parameter, annotation in parameters:
        schema = _schema(annotation, definitions)
        if parameter.kind is parameter.VAR_KEYWORD:
            more = schema
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            schema = {"type": "array", "items": schema}
        elif parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema = _with_default(schema, parameter.default)
        positional += parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        properties[parameter.name] = schema
    whole = {
        "title": signature.name,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": more,
        POSITIONAL: positional,
        **({"$defs": definitions} if definitions else {}),
    }
    try:
        written: str = to_json(whole).decode()
        check_text(written, "schema")
    except Exception:  # something of a library of others, in a default or a description, that is no JSON
        return None
    return written


def _with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    """Adds a default to the schema of a parameter. One that JSON cannot hold, or that is a secret, is left out; the
    parameter is optional all the same."""
    try:
        if any(True for _ in secrets(default)):
            return schema
        return {**schema, "default": read_plain(to_json(default))}
    except Exception:
        return schema


def _schema(annotation: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a type. Those of classes are put into `definitions`, where references point."""
    if annotation is Any or annotation is object:
        return {}

    def other(cls: Any) -> dict[str, Any]:
        members = getattr(cls, "members", None)
        if members is not None:  # a union that stands for itself, see core.values
            return {"anyOf": [_schema(member, definitions) for member in members]}
        if getattr(cls, "__pydantic_validator__", None) is not None:
            from pydantic import TypeAdapter

            made = TypeAdapter(cls).json_schema(ref_template=_REFERENCE.format("{model}")) | {LAX: True}
            return made if _define(made.pop("$defs", {}), definitions) else {}
        if isinstance(cls, type) and issubclass(cls, PurePath):
            return {"type": "string"}
        return {"type": "array"} if cls is deque else {}

    try:
        (schema,), found = msgspec.json.schema_components(
            [supported(annotation)], schema_hook=other, ref_template=_REFERENCE.format("{name}")
        )
    except Exception:  # a class that only our own decoder can read
        return {}
    return schema if _define(found, definitions) else {}


def _define(found: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Adds definitions; returns False if another class has one of these names already: then nothing is said about this
    one."""
    if any(definitions.get(name, schema) != schema for name, schema in found.items()):
        return False
    definitions.update(found)
    return True
