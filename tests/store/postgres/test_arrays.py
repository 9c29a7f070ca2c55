"""asyncpg asks less about elements of arrays, and takes and refuses what it did before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
from asyncpg.protocol import protocol

from kagzi.store.postgres import arrays
from kagzi.store.postgres.connection import Connector

COLUMNS = "SELECT $1::text[], $2::bigint[], $3::bytea[], $4::uuid[], $5::integer[], $6::text[]"
UUID = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"


class Numbers:
    """An array of another library: no base class says that it is one."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))


@pytest.fixture
async def connection(postgres_url: str) -> Any:
    connection = await Connector(postgres_url).connect()
    assert str in protocol.IterableABC  # type: ignore[attr-defined]
    yield connection
    await connection.close()


async def test_lists_are_encoded_as_ever(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    columns = [["a", None, ""], [1, None, -(2**63)], [b"", b"\0", None]]
    row = await connection.fetchrow(COLUMNS, *columns, (UUID, None), [], [["a", "b"], ["c", "d"]])
    assert row is not None
    assert list(row.values())[:3] == columns
    assert [None if each is None else str(each) for each in row[3]] == [UUID, None]
    assert list(row.values())[4:] == [[], [["a", "b"], ["c", "d"]]]


@pytest.mark.parametrize("given", [{1}, frozenset({1}), deque([1]), {1: 2}.keys(), Numbers(), [Numbers(), Numbers()]])
async def test_what_others_give_for_an_array_is_taken(
    connection: asyncpg.Connection[asyncpg.Record], given: Any
) -> None:
    expected = [list(each) if isinstance(each, Numbers) else each for each in given]
    assert await connection.fetchval("SELECT $1::integer[]", given) == expected


@pytest.mark.parametrize("wrong", ["ab", b"ab", 7, True, 1.5, {"a": 1}, iter([1])])
async def test_what_is_no_array_is_refused(connection: asyncpg.Connection[asyncpg.Record], wrong: Any) -> None:
    with pytest.raises(asyncpg.DataError, match="sized iterable"):
        await connection.fetch("SELECT $1::text[]", wrong)


async def test_no_base_class_is_asked_about_our_elements(
    connection: asyncpg.Connection[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    class Asked(type):
        def __instancecheck__(cls, instance: object) -> bool:
            asked.append(instance)
            return False

    class Base(metaclass=Asked):
        pass

    for name in ("IterableABC", "SizedABC", "MappingABC"):
        monkeypatch.setattr(protocol, name, (*getattr(protocol, name)[:-1], Base))
    elements = [["a", None], [1, None], [b"a", None], [UUID], [], ["a"]]
    await connection.fetch(COLUMNS, *elements)
    assert [each for each in asked if each in elements] == elements  # each array once, whether it is a mapping
    assert all(isinstance(each, list) for each in asked)


def test_it_is_done_once() -> None:
    before = protocol.SizedABC  # type: ignore[attr-defined]
    arrays.ask_quickly()
    assert protocol.SizedABC is before  # type: ignore[attr-defined]


def test_a_version_that_asks_in_another_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(IterableABC=object)
    monkeypatch.setattr(arrays, "protocol", other)
    arrays.ask_quickly()
    assert vars(other) == {"IterableABC": object}


async def test_what_arrays_are_is_asked_once_in_a_process(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_described", {})
    asked: list[Any] = []
    for through in ("", "", "?pgbouncer=true"):
        connection = await Connector(postgres_url + through).connect()
        connection.add_query_logger(lambda query: asked.append(query.query))
        for _ in range(2):
            row = await connection.fetchrow("SELECT $1::uuid[], $2::float4[], $1::uuid[]", [UUID], [0.5])
            assert row is not None
            assert [str(row[0][0]), row[1]] == [UUID, [0.5]]
        await connection.close()
    assert sum("typeinfo" in query for query in asked) == 1


async def test_types_of_one_database_are_asked_after_in_each(postgres_url: str, fresh_database: str) -> None:
    for url, fields in ((postgres_url, "a integer"), (fresh_database, "a integer, b text")):
        connection = await Connector(url).connect()
        await connection.execute(f"CREATE TYPE pair_of_test AS ({fields})")
        try:
            found = await connection.fetchval("SELECT ARRAY[ROW(1" + ", 'x'" * ("b" in fields) + ")::pair_of_test]")
            assert [tuple(each) for each in found] == [(1, "x")[: 1 + ("b" in fields)]]
        finally:
            await connection.execute("DROP TYPE pair_of_test")
            await connection.close()
