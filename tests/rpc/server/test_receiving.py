from __future__ import annotations

from typing import Any, cast

import pytest

from kagzi.access import Caller, Role
from kagzi.access.shares import Room, Shares, Turns
from kagzi.rpc import limits
from kagzi.rpc.methods import METHODS
from kagzi.rpc.server.receiving import received


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
