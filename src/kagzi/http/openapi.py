"""The OpenAPI 3.1 document, made from the list of routes and the records they speak in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from kagzi.core.limits import NAME_CHARACTERS
from kagzi.http.events import QueueEvent, ResyncEvent, RunEvent, ScheduleEvent
from kagzi.http.fields import TEXT
from kagzi.http.problems import MEDIA_TYPE, Problem
from kagzi.version import __version__

if TYPE_CHECKING:
    from kagzi.http.routes import Route

_PARAMETER: Final = re.compile(r"{(\w+)}")
_REFERENCE: Final = "#/components/schemas/{name}"
_DESCRIPTION: Final = (
    "Durable workflows. Moments are RFC 3339 in UTC. Payloads appear as the JSON they are; what is not JSON appears as "
    '`{"base64": "…"}`. Errors are problem documents (RFC 9457) with the stable `code` of the error, and the `field` '
    "that was wrong if it was one."
)
_ID: Final = {"type": "string", "format": "uuid"}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS, **TEXT}
_PATH_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "run_id": {
        "schema": _NAME,
        "description": "A run id, or the `id` that the run was started with. A UUID of version 7 is a run id.",
    },
    "schedule_id": {"description": "The schedule's id, or its name.", "schema": _NAME},
    "worker_id": {"schema": _ID},
    "job_id": {"schema": _NAME},
    "namespace": {"schema": _NAME},
    "queue": {"schema": _NAME},
    "workflow": {"schema": _NAME},
}
_GIVEN: Final = {"not": {"type": "null"}}
# Fields of bodies that do not go together if they hold this.
_NOT_BOTH: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "StartBody": (
        {"delay": _GIVEN, "start_at": _GIVEN},
        {"input": {"not": {"const": []}}, "input_base64": _GIVEN},
    )
}
_HEADERS: Final[dict[str, tuple[str, str]]] = {
    "start_run": ("Idempotency-Key", "The id of the run, if the body has none: repeating a start finds the first run."),
    "stream_events": ("Last-Event-ID", "Of the last event that was received: go on after it."),
}


def document(routes: Sequence[Route]) -> bytes:
    kinds = _kinds(routes)
    references, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    schemas = dict(zip(kinds, references, strict=True))
    for name, pairs in _NOT_BOTH.items():
        components[name]["allOf"] = [{"not": {"required": list(pair), "properties": pair}} for pair in pairs]
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.about is not None:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Kagzi",
                "version": __version__,
                "description": _DESCRIPTION,
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "security": [{"key": []}, {}],
            "tags": [{"name": name} for name in dict.fromkeys(route.about for route in routes if route.about)],
            "paths": paths,
            "components": {
                "schemas": {
                    name: _with_integers(schema) for name, schema in components.items() if name not in _queries(routes)
                },
                "securitySchemes": {
                    "key": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "An API key, where the server asks for one.",
                    }
                },
                "responses": {
                    "Problem": {
                        "description": "What went wrong.",
                        "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
                    }
                },
            },
        }
    )


def _with_integers(schema: Any) -> Any:
    """Returns the schema with numbers that must be whole called integers, which in JSON may be written 3.0 as well."""
    if isinstance(schema, list):
        return [_with_integers(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _with_integers(part) for key, part in schema.items()}
    if parts.get("type") == "number" and parts.get("multipleOf") == 1:
        del parts["multipleOf"]
        parts["type"] = "integer"
    return parts


def _kinds(routes: Iterable[Route]) -> list[type[Struct]]:
    kinds: dict[type[Struct], None] = {
        Problem: None,
        RunEvent: None,
        ScheduleEvent: None,
        QueueEvent: None,
        ResyncEvent: None,
    }
    for route in routes:
        for kind in (route.query, route.body, route.answer):
            if isinstance(kind, type):
                kinds[kind] = None
    return list(kinds)


def _queries(routes: Iterable[Route]) -> set[str]:
    return {route.query.__name__ for route in routes}


def _operation(
    route: Route, schemas: dict[type[Struct], dict[str, Any]], components: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    content: dict[str, Any]
    if isinstance(route.answer, str):
        content = {route.answer: {}}
    else:
        content = {"application/json": {"schema": schemas[route.answer]}}
    success = {"description": route.summary, "content": content}
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.about],
        "parameters": [*_path_parameters(route), *_query_parameters(route, components), *_header_parameters(route)],
        "responses": {
            str(route.status): success,
            **({} if route.also is None else {str(route.also): success}),
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if route.public:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[route.body]}},
        }
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True} | _PATH_PARAMETERS[name]
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: Route, components: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    properties: dict[str, dict[str, Any]] = components[route.query.__name__]["properties"]
    needed = components[route.query.__name__].get("required", ())
    parameters = []
    for name, schema in properties.items():
        # Nobody sends null in a query.
        options = [option for option in schema.get("anyOf", []) if option != {"type": "null"}]
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        if schema.get("default") is not None:
            rest["default"] = schema["default"]
        if len(options) == 1:
            rest |= options[0]
        elif options:
            rest["anyOf"] = options
        description = rest.pop("description", None)
        parameters.append(
            {"name": name, "in": "query", "schema": rest}
            | ({"required": True} if name in needed else {})
            | ({} if description is None else {"description": description})
        )
    return parameters


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    if (found := _HEADERS.get(route.operation)) is None:
        return []
    name, description = found
    return [{"name": name, "in": "header", "description": description, "schema": _NAME}]
