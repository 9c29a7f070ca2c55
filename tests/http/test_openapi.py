"""The list of routes, the access table and the OpenAPI document say the same."""

from __future__ import annotations

import re

from jsonschema import Draft202012Validator

from kagzi.access import ACTIONS
from kagzi.dashboard import PAGES
from kagzi.http.routes import ROUTES
from tests.http.support import DOCUMENT, Client


def test_every_route_is_in_the_access_table_and_the_other_way_round() -> None:
    routes = {route.action for route in (*ROUTES, *PAGES) if not route.public}
    assert routes == {action for action in ACTIONS if not action.startswith("/")}
    assert {route.action for route in ROUTES if route.public} == {"GET /livez", "GET /readyz"}


def test_only_post_changes_anything() -> None:
    for route in (*ROUTES, *PAGES):
        assert route.method in ("GET", "POST")
        assert (route.body is not None) is (route.method == "POST")
        assert ACTIONS.get(route.action) is None or not (route.method == "GET" and ACTIONS[route.action].audited)


async def test_the_document_is_served_and_well_formed(quick: Client) -> None:
    assert await quick.get("/api/v1/openapi.json") == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"
    operations = [operation for item in DOCUMENT["paths"].values() for operation in item.values()]
    assert len(operations) == len(ROUTES)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for name, schema in DOCUMENT["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert schema.get("properties") is not None or "enum" in schema or name.endswith("Body")
    references = set(re.findall(r'"\$ref": ?"#/components/(\w+/\w+)"', str(DOCUMENT).replace("'", '"')))
    for reference in references:
        kind, _, name = reference.partition("/")
        assert name in DOCUMENT["components"][kind]
    for path, item in DOCUMENT["paths"].items():
        for operation in item.values():
            declared = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))
            for parameter in operation["parameters"]:
                Draft202012Validator.check_schema(parameter["schema"])
                assert parameter["schema"], parameter
                if parameter["in"] == "path" and parameter["name"] == "worker_id":
                    assert parameter["schema"]["format"] == "uuid"


def test_bodies_refuse_what_the_document_does_not_know() -> None:
    for route in ROUTES:
        if route.body is not None:
            schema = DOCUMENT["components"]["schemas"][route.body.__name__]
            assert schema["additionalProperties"] is False
