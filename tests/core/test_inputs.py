"""Inputs against the schema of a workflow: what is refused at the door would be refused by the worker."""

from __future__ import annotations

import enum
import json
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from kagzi.core.inputs import Misfit, input_reader
from kagzi.sdk.interfaces import input_schema
from kagzi.sdk.signature import Signature


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Address:
    street: str
    number: int = 1


class Order(msgspec.Struct, rename="camel"):
    order_id: str
    address: Address | None = None
    parts: list[Order] = msgspec.field(default_factory=list)


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Row(msgspec.Struct, array_like=True):
    a: int
    b: str


class Point(NamedTuple):
    x: int
    y: int


class Named(TypedDict, total=False):
    name: str


class Model(pydantic.BaseModel):
    count: int
    nick: str = pydantic.Field(default="", alias="nickName")


Tree = dict[str, "Tree"] | list["Tree"] | int | str | None
ANNOTATIONS: list[Any] = [
    *(int, float, str, bool, bytes, None, object, Any, dict, list, tuple, set),
    *(int | None, int | str, float | None, Literal["a", 1], Literal[True], Colour, Level, Decimal, datetime, timedelta),
    *(uuid.UUID, Path, deque, list[int], set[str], dict[str, int], dict[int, str], tuple[int, str], tuple[int, ...]),
    *(Address, Order, Cat | Dog, Row, Point, Named, Model, Address | Model, list[Address], Model | None, list[Model]),
    *(Annotated[int, msgspec.Meta(ge=1, lt=5)], Annotated[str, msgspec.Meta(min_length=2, pattern="^a")]),
    Annotated[list[int], msgspec.Meta(max_length=1)],
]
VALUES: list[str] = [
    *("null", "true", "0", "1", "1.0", "1.5", "-7", "1e3", "12345678901234567890", '""', '"a"', '"ab"', '"red"', '"1"'),
    *('"1.5"', '"2026-11-18T09:00:00Z"', '"PT1H"', '"aGk="', '"0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"', '"/tmp"'),
    *("[]", "[1]", "[1,2]", '[1,"a"]', '["a"]', "[[]]", "{}", '{"a":1}', '{"1":"a"}', '{"street":"s"}'),
    *('{"street":"s","number":"1"}', '{"street":1}', '{"street":"s","more":1}', '{"orderId":"1"}', '{"order_id":"1"}'),
    *('{"orderId":"1","parts":[{"orderId":2}]}', '{"orderId":"1","address":{}}', '{"type":"Cat","lives":1}'),
    *('{"type":"Cow"}', '{"type":"Dog","lives":1}', '{"name":1}', '{"count":"1"}', '{"count":1,"nickName":"n"}'),
    *('{"count":[]}', '{"count":1.0}', '[{"street":"s"}]', '[{"count":1}]', '{"x":1,"y":2}', '{"x":1}', '{"x":"{}"}'),
]


def refused(read: Callable[[bytes], object], data: bytes) -> str | None:
    try:
        read(data)
    except (Misfit, Exception) as error:
        return str(error) or repr(error)
    return None


def of_one(annotation: Any) -> Signature:
    def one(x: Any) -> None: ...

    one.__annotations__["x"] = annotation
    return Signature(one, name="one")


def of_some() -> Signature:
    def some(order: Order, cents: int = 5, *rest: int, note: str | None = None) -> None: ...

    return Signature(some, name="some")


def of_many() -> Signature:
    def many(order: str, /, cents: int, *, note: str = "", **more: int) -> None: ...

    return Signature(many, name="many")


def of_none() -> Signature:
    def none() -> None: ...

    return Signature(none, name="none")


def test_what_is_refused_here_no_worker_would_read() -> None:
    signatures = [of_one(annotation) for annotation in ANNOTATIONS] + [of_some(), of_many(), of_none()]
    inputs = [form.format(value) for form in ("{}", "[{}]", "[{},1]", '{{"x":{}}}') for value in VALUES]
    inputs += ['[{"orderId":"1"},1,2,3]', '{"order":{"orderId":"1"},"cents":"x"}', '{"cents":1}', '{"order":"1"}']
    inputs += [
        '{"order":"1","cents":1,"more":2}',
        '{"order":"1","cents":1,"more":"x"}',
        "[",
        "",
        '{"order":1,"cents":2}',
    ]
    both = 0
    for signature in signatures:
        schema = input_schema(signature)
        assert schema is not None
        reader = input_reader(schema)
        assert reader is not None
        for text in inputs:
            data = text.encode()
            why, theirs = refused(reader.read, data), refused(signature.decode_arguments, data)
            assert why is None or theirs is not None, (signature.name, schema, text, why)
            both += why is not None
    assert both > 4000, "hardly anything is refused"


REFUSED: list[tuple[Callable[[], Signature], str, str]] = [
    (of_some, '[{"orderId":"1"},"x"]', "argument 'cents' must be an integer, not \"x\""),
    (of_some, "{}", "argument 'order' is missing; the workflow takes order, cents, rest, note"),
    (of_some, '{"order":{"orderId":"1"},"cent":1}', "it has no argument 'cent'; the workflow takes order, cents, rest"),
    (of_some, '[{"orderId":7}]', "'orderId' of argument 'order' must be text, not 7"),
    (of_some, '[{"orderId":"1","parts":[{}]}]', "item 0 of 'parts' of argument 'order' has no 'orderId'"),
    (of_many, '["1",2,3]', "it has 3 arguments by position, and the workflow takes order, cents"),
    (of_many, '{"order":"1","cents":1,"more":"x"}', "argument 'more' must be an integer"),
    (of_none, "[1]", "it has 1 arguments by position, and the workflow takes none"),
    (lambda: of_one(Annotated[int, msgspec.Meta(ge=1)]), "0", "argument 'x' must be at least 1, not 0"),
    (lambda: of_one(Literal["a", "b"]), '["c"]', 'argument \'x\' must be one of "a", "b", not "c"'),
    (lambda: of_one(int | None), '["c"]', "argument 'x' must be an integer or null, not \"c\""),
    (lambda: of_one(int), "1.0", "argument 'x' must be an integer, not 1.0"),
    (lambda: of_one(int), "nonsense", "it is not JSON"),
]


@pytest.mark.parametrize(("make", "text", "why"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_what_does_not_fit_is_named(make: Callable[[], Signature], text: str, why: str) -> None:
    signature = make()
    reader = input_reader(input_schema(signature) or "")
    assert reader is not None
    with pytest.raises(Misfit) as caught:
        reader.read(text.encode())
    assert why in str(caught.value)
    assert refused(signature.decode_arguments, text.encode()) is not None


def test_a_schema_that_compares_without_end_is_given_up() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}
    twice = {"type": "object", "properties": {"a": {"$ref": "#/$defs/twice"}}, "required": ["b"]}
    deep = {"anyOf": [twice, {**twice, "title": "other"}]}
    schema = {"properties": {"x": {"$ref": "#/$defs/loop"}, "y": {"$ref": "#/$defs/twice"}}, "required": []}
    reader = input_reader(json.dumps({**schema, "$defs": {"loop": loop, "twice": deep}}))
    assert reader is not None
    value: dict[str, Any] = {}
    for _ in range(60):
        value = {"a": value}
    assert reader.read(json.dumps({"x": 1, "y": value}).encode()).keys() == {"x", "y"}
