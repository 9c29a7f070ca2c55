"""What one key and one namespace may have at a time, and who comes next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.access import Caller, Role
from kagzi.access.shares import Room, Shares, Turns
from kagzi.errors import LimitExceeded


def of(key: str | None, namespace: str | None = None) -> Caller:
    return Caller(key_id=key, namespace=namespace, role=Role.VIEWER, peer="")


def test_a_key_and_a_namespace_have_a_share_each() -> None:
    shares = Shares(2, "calls")
    for key in ("a", "a", "b", "b"):
        shares.take(of(key, "one"))
    with pytest.raises(LimitExceeded, match="more than 2 calls are under way with this key"):
        shares.take(of("a", "one"))
    with pytest.raises(LimitExceeded, match="more than 4 calls are under way with this namespace"):
        shares.take(of("c", "one"))
    shares.take(of("c", "two"))
    shares.take(of("d"))
    shares.give(of("b", "one"))
    with shares.held(of("c", "one")), pytest.raises(LimitExceeded):
        shares.take(of("c", "one"))
    shares.take(of("c", "one"))


def test_where_there_are_no_keys_all_share_the_whole() -> None:
    shares = Shares(1, "calls")
    for _ in range(10):
        shares.take(of(None))


class Queue:
    """Callers who come one after the other, and the names of those whose turn it is."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.let_in: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, caller: Caller, weight: int = 1) -> None:
        async def take() -> None:
            await self.turns.take(caller, weight)
            self.let_in.append(name)

        self.tasks[name] = asyncio.create_task(take())
        await asyncio.sleep(0)

    async def settle(self) -> list[str]:
        for _ in range(3):
            await asyncio.sleep(0)
        found, self.let_in = self.let_in, []
        return found


async def test_a_key_waits_for_its_own_share_and_others_do_not_wait_for_it() -> None:
    queue = Queue(Turns(8, 2))
    for number in range(5):
        await queue.come(f"a{number}", of("a", "one"))
    await queue.come("b0", of("b", "two"))
    assert await queue.settle() == ["a0", "a1", "b0"]
    queue.turns.give(of("a", "one"))
    assert await queue.settle() == ["a2"]


async def test_keys_take_turns_however_many_calls_they_have() -> None:
    queue = Queue(Turns(2, 2))
    for number in range(6):
        await queue.come(f"a{number}", of("a"))
    await queue.come("b0", of("b"))
    await queue.come("c0", of("c"))
    assert await queue.settle() == ["a0", "a1"]
    queue.turns.give(of("a"))
    queue.turns.give(of("a"))
    assert await queue.settle() == ["a2", "b0"]
    queue.turns.give(of("b"))
    assert await queue.settle() == ["c0"]


async def test_a_heavy_turn_does_not_wait_behind_light_ones_for_ever() -> None:
    queue = Queue(Turns(10, 10))
    await queue.come("light", of("a"), 4)
    await queue.come("heavy", of("b"), 8)
    await queue.come("late", of("c"), 1)
    assert await queue.settle() == ["light"]
    queue.turns.give(of("a"), 4)
    assert await queue.settle() == ["heavy", "late"]


async def test_a_heavy_turn_that_goes_away_lets_in_the_light_ones_behind_it() -> None:
    queue = Queue(Turns(10, 10))
    await queue.come("light", of("a"), 4)
    await queue.come("heavy", of("b"), 8)
    await queue.come("late", of("c"), 1)
    await queue.come("later", of("d"), 1)
    assert await queue.settle() == ["light"]
    queue.tasks["heavy"].cancel()
    assert await queue.settle() == ["late", "later"]


async def test_three_shares_are_used_in_turn_also_by_those_who_fail() -> None:
    turns = Turns(2, 2)
    let_in: list[str] = []

    async def use(name: str) -> None:
        async with turns.turn(of(name), 2):
            let_in.append(name)
            await asyncio.sleep(0)
            raise ConnectionError

    await asyncio.gather(*(use(name) for name in "xaaabbbccc"), return_exceptions=True)
    assert "".join(let_in) == "xabcabcabc"
    assert _empty(turns)


async def test_more_than_the_bounds_is_let_in_alone() -> None:
    queue = Queue(Turns(10, 5))
    await queue.come("first", of("a"), 1)
    await queue.come("huge", of("a"), 100)
    assert await queue.settle() == ["first"]
    queue.turns.give(of("a"), 1)
    assert await queue.settle() == ["huge"]
    await queue.come("next", of("b"), 1)
    assert await queue.settle() == []
    queue.turns.give(of("a"), 100)
    assert await queue.settle() == ["next"]


@pytest.mark.parametrize("granted", [False, True])
async def test_one_who_goes_away_leaves_its_turn_to_the_next(granted: bool) -> None:
    queue = Queue(Turns(1, 1))
    for name in ("a", "b", "c"):
        await queue.come(name, of(name))
    assert await queue.settle() == ["a"]
    if granted:
        queue.turns.give(of("a"))  # b's turn, which it has not heard of yet
    queue.tasks["b"].cancel()
    await asyncio.gather(queue.tasks["b"], return_exceptions=True)
    if not granted:
        queue.turns.give(of("a"))
    assert await queue.settle() == ["c"]
    queue.turns.give(of("c"))
    assert _empty(queue.turns)


async def test_nothing_is_kept_of_those_who_have_gone() -> None:
    turns = Turns(10, 5)
    await asyncio.gather(*[_use(turns, of(str(number), "one")) for number in range(100)])
    assert _empty(turns)


async def _use(turns: Turns, caller: Caller) -> None:
    async with turns.turn(caller, 3):
        await asyncio.sleep(0)


def _empty(turns: Any) -> bool:
    return not turns._taken and not turns._held and not turns._waiting


async def test_bytes_that_are_there_count_although_nobody_waited_for_them() -> None:
    turns = Turns(most=100, per_key=10)
    room = Room(turns, Shares(10, "calls"), of("a"))
    queue = Queue(turns)
    await room.take(4)
    room.add(5)
    await queue.come("second", of("a"), 2)
    assert await queue.settle() == []
    room.give(9)
    assert await queue.settle() == ["second"]
