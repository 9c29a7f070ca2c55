"""The form in which values are compared: the same in every process, however the value was made."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kagzi.core.canonical import canonical_json, same_json, with_sets_in_order

ROOT = Path(__file__).parents[2]

SHAPES = """
import enum, sys
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict
import attrs, msgspec, pydantic
from kagzi import Cron, Kagzi
from kagzi.sdk.signature import Signature

class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"
    UGLY = "ugly"

@dataclass(frozen=True)
class Line:
    sku: str
    marks: frozenset[str]

class Order(msgspec.Struct, frozen=True, tag="order"):
    tags: set[str]
    lines: frozenset[Line] = frozenset()

@attrs.frozen
class Box:
    names: frozenset[str]

class Inner(pydantic.BaseModel):
    names: set[str]

class Model(pydantic.BaseModel):
    inner: list[Inner]
    by_name: dict[str, set[str]]

class Named(NamedTuple):
    names: set[str]

class Typed(TypedDict):
    names: set[str]

words = [f"word-{n}" for n in range(20)]
some = set(words)
lines = frozenset(Line(word, frozenset(words)) for word in words)
cases = [
    (set[str], some), (frozenset[str], frozenset(words)), (Any, some), (Any, {"a": [some, (some, 1)]}),
    (list[Any], [some]),
    (set[Mood], set(Mood)), (set[tuple[str, int]], {(word, 1) for word in words}), (Any, {1, "a", None, 2.5}),
    (dict[str, set[str]], {"b": some, "a": some}), (dict[int, set[str]], {2: some, 1: some}),
    (Line, Line("a", frozenset(words))), (Order, Order(some, lines)), (Box, Box(frozenset(words))),
    (Model, Model(inner=[Inner(names=some)], by_name={"a": some})), (Any, Inner(names=some)),
    (Named, Named(some)), (Typed, {"names": some}), (set[str] | None, some), (Any, [Line("a", frozenset(words))]),
]
for kind, value in cases:
    def call(given, other=None): ...
    call.__annotations__ = {"given": kind, "other": set[str], "return": kind}
    signature = Signature(call)
    for args in ((value,), (value, some)):
        print(signature.settle_input(args, {})[:2], signature.encode_input_strictly(args, {}))
        print(signature.encode_arguments(args, {}))
    print(signature.encode_result(value), signature.settle_result(value)[0])

app = Kagzi("memory://")

@app.workflow(schedule=Cron("0 9 * * *", args=[some], kwargs={"limits": {"b": 1, "a": 2}}))
async def nightly(given: set[str], limits: dict[str, float]) -> None: ...

print(app.declared_schedules()[0].hash)
"""


def test_whatever_the_hash_seed_sets_are_written_and_hashed_alike() -> None:
    told = set()
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([sys.executable, "-c", SHAPES], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.add(done.stdout)
    one, *others = told
    assert not others, [
        pair for pair in zip(one.splitlines(), others[0].splitlines(), strict=True) if len(set(pair)) > 1
    ]


ALIKE = [
    (b"[1]", b"[1.0]"),
    (b"[100]", b"[1e2]"),
    (b'{"a":1,"b":[{"x":1,"y":2}]}', b' { "b" : [{"y":2,"x":1.0}], "a":1}'),
    (b"[12345678901234567890]", b"[12345678901234567890.0]"),
    (b'["\\u00e9"]', '["é"]'.encode()),
    (b"[0.1]", b"[1e-1]"),
]
OTHERS = [
    (b"[1]", b"[true]"),
    (b"[0]", b"[false]"),
    (b"[1]", b'["1"]'),
    (b"[1,2]", b"[2,1]"),
    (b"[null]", b"[]"),
    (b"[null]", b"[1e999]"),
    (b"[9007199254740993]", b"[9007199254740992.0]"),
    (b"[1e999999999]", b"[1e999999998]"),
    (b"\x03sealed", b"\x03other"),
    (b"[", b"[["),
    (b"[" * 100_000, b"[" * 100_001),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_documents_that_say_the_same_are_the_same(one: bytes, other: bytes) -> None:
    assert same_json(one, other)
    assert same_json(other, one)


@pytest.mark.parametrize(("one", "other"), OTHERS, ids=[str(number) for number in range(len(OTHERS))])
def test_documents_that_say_something_else_are_not(one: bytes, other: bytes) -> None:
    assert not same_json(one, other)
    assert same_json(one, one)


@pytest.mark.postgres
async def test_starts_from_sql_are_compared_by_the_same_rule(postgres_database: str) -> None:
    import asyncpg

    from kagzi.connect import connect

    engine = connect(postgres_database)
    await engine.open()
    await engine.close()
    connection = await asyncpg.connect(postgres_database)
    try:
        for same, pairs in ((True, ALIKE), (False, OTHERS)):
            for one, other in pairs:
                if b"e999" not in one + other and len(one) < 1000:  # what jsonb refuses
                    assert await connection.fetchval("SELECT kagzi.same_input($1, $2)", one, other) is same, (
                        one,
                        other,
                    )
    finally:
        await connection.close()


def test_what_holds_no_set_is_given_back_as_it_is() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for value in (1, [1, {"b": 1, "a": [2.5]}], {"b": {"x": None}}, set(), {1}, (1, [2]), loop, deep):
        assert with_sets_in_order(value) is value


def test_canonical_json_does_not_depend_on_how_dicts_were_made() -> None:
    chance = random.Random(7)

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            chance.shuffle(items)
            return {key: shuffled(item) for key, item in items}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    value = {"z": [{"b": 1, "a": {str(n): n for n in range(20)}}], "y": 2, "x": {"c": None, "b": [1, 2]}}
    assert len({canonical_json(shuffled(value)) for _ in range(20)}) == 1
    assert canonical_json({2: 1, 10: {"b": 1, "a": 2}}) == b'{"10":{"a":2,"b":1},"2":1}'
    assert msgspec.json.decode(canonical_json(value)) == value
