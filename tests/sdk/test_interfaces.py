from __future__ import annotations

import datetime
import enum
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from kagzi import Context, Kagzi


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


HIDDEN = pydantic.SecretStr("hidden")


class Item(pydantic.BaseModel):
    sku: str


class Order(pydantic.BaseModel):
    items: list[Item]
    token: pydantic.SecretStr = pydantic.SecretStr("hidden")


@dataclass
class Address:
    street: str


def described(function: Any) -> tuple[str, dict[str, Any]]:
    app = Kagzi("memory://")
    app.workflow(function)
    (interface,) = app.workflow_interfaces()
    return interface.summary, json.loads(interface.input_schema or "null")


def test_parameters_become_properties_in_their_order() -> None:
    async def sell(
        ctx: Context,
        order: Order,
        count: Annotated[int, msgspec.Meta(ge=1, description="how many")] = 1,
        size: Size = Size.SMALL,
        to: Address | Item | None = None,
        secret: pydantic.SecretStr = HIDDEN,
        *rest: int,
        on: datetime.date | None = None,
        at: Path = Path("here"),
    ) -> None:
        """Sell something.

        And more.
        """

    summary, schema = described(sell)
    assert summary == "Sell something."
    assert list(schema["properties"]) == ["order", "count", "size", "to", "secret", "rest", "on", "at"]
    assert schema["required"] == ["order"]
    assert schema["x-kagzi-positional"] == 5
    assert schema["additionalProperties"] is False
    properties, defs = schema["properties"], schema["$defs"]
    assert properties["order"]["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert defs["Item"]["properties"]["sku"]["type"] == "string"
    assert properties["count"] == {"type": "integer", "minimum": 1, "description": "how many", "default": 1}
    assert properties["size"] == {"$ref": "#/$defs/Size", "default": "s"}
    assert set(defs["Size"]["enum"]) == {"s", "l"}
    assert {"$ref": "#/$defs/Address"} in properties["to"]["anyOf"]
    assert properties["rest"] == {"type": "array", "items": {"type": "integer"}}
    assert properties["on"]["default"] is None
    assert properties["at"] == {"type": "string", "default": "here"}
    assert "hidden" not in json.dumps(schema)


def test_what_has_no_schema_is_left_open() -> None:
    async def odd(anything, *, known: int = 3, **more: str) -> None: ...  # type: ignore[no-untyped-def]

    summary, schema = described(odd)
    assert summary == ""
    assert schema["properties"] == {"anything": {}, "known": {"type": "integer", "default": 3}}
    assert schema["additionalProperties"] == {"type": "string"}


def test_a_schema_that_is_too_large_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def small(n: int) -> None: ...

    @app.workflow
    async def large(text: str = "x" * 70_000) -> None: ...

    with caplog.at_level(logging.WARNING, "kagzi.worker"):
        found = {each.workflow_type: each.input_schema for each in app.workflow_interfaces()}
    assert found["large"] is None
    assert found["small"] is not None
    (record,) = caplog.records
    assert "the JSON Schema of workflow large 1 is not sent" in record.getMessage()


async def test_a_worker_tells_what_its_workflows_take() -> None:
    app = Kagzi("memory://")

    @app.workflow
    async def hello(name: str) -> None:
        """Greet somebody."""

    async with app, app.worker():
        told = await app.engine.versions.describe("default", "hello")
    assert told.summary == "Greet somebody."
    assert json.loads(told.input_schema or "")["properties"] == {"name": {"type": "string"}}
