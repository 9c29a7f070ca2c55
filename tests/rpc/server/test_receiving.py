from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kagzi.access import Caller, Role
from kagzi.access.shares import Room, Shares, Turns
from kagzi.errors import KagziError
from kagzi.rpc import limits
from kagzi.rpc.methods import METHODS
from kagzi.rpc.server.receiving import received
from kagzi.rpc.status import Refused


class _Sent:
    """A call whose request is so long once gRPC has unpacked it."""

    def __init__(self, size: int) -> None:
        self.context = self
        self._size = size

    async def read(self) -> bytes:
        return bytes(self._size)


class _Guard:
    def __init__(self, room: Room) -> None:
        self._room = room

    async def receive(self, *_: object) -> Room:
        return self._room


@pytest.mark.parametrize("size", [10, limits.READING_BYTES, limits.MESSAGE_BYTES])
async def test_a_request_takes_the_room_of_all_its_bytes(size: int) -> None:
    turns = Turns(most=2 * limits.MESSAGE_BYTES, per_key=2 * limits.MESSAGE_BYTES)
    caller = Caller(key_id="a", namespace=None, role=Role.CLIENT, peer="")
    guard = cast(Any, _Guard(Room(turns, Shares(1, "calls"), caller)))
    async with received(next(iter(METHODS.values())), cast(Any, _Sent(size)), guard) as data:
        assert len(data) == turns._taken == size
    assert turns._taken == 0


class _Failing:
    """A call whose request does not come, or not whole."""

    def __init__(self, problem: BaseException | None) -> None:
        self.context = self
        self._problem = problem

    async def read(self) -> object:
        if self._problem is not None:
            raise self._problem
        return None  # the end, where a request should be


async def _fails(call: Any, guard: Any) -> None:
    async with received(next(iter(METHODS.values())), call, guard) as data:
        raise ValueError(f"a call that brought {len(data)} bytes and fails")


@pytest.mark.parametrize(
    "call",
    [
        _Failing(TimeoutError()),
        _Failing(None),
        _Failing(ConnectionError()),
        _Failing(asyncio.CancelledError()),
        _Sent(10),
    ],
    ids=["too late", "nothing", "cut", "cancelled", "refused by its method"],
)
async def test_shares_are_given_back_by_those_who_fail(call: Any) -> None:
    """There is room for one request at a time, so what one of three in turn keeps would stop the next."""
    turns = Turns(most=limits.READING_BYTES, per_key=limits.READING_BYTES)
    arriving = Shares(1, "requests")
    for key in ("a", "a", "b"):
        caller = Caller(key_id=key, namespace="team", role=Role.CLIENT, peer="")
        guard = _Guard(Room(turns, arriving, caller))
        async with asyncio.timeout(10):
            with pytest.raises((Refused, KagziError, ConnectionError, asyncio.CancelledError, ValueError)):
                await _fails(call, guard)
    assert (turns._taken, turns._held) == (0, {})
    assert (arriving._of_keys, arriving._of_namespaces) == ({}, {})
