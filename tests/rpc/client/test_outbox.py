"""What goes into one call, and when it goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kagzi.errors import KagziError, Locked, NotFound, Unavailable
from kagzi.rpc.client.outbox import Outbox
from kagzi.rpc.limits import CALL_BYTES, CALL_ITEMS


class Server:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self._answers: list[asyncio.Future[list[int | KagziError]]] = []

    async def send(self, namespace: str, items: list[int]) -> list[int | KagziError]:
        assert namespace == "default"
        self.calls.append(items)
        answer: asyncio.Future[list[int | KagziError]] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return await answer

    @property
    def sizes(self) -> list[int]:
        return [len(call) for call in self.calls]

    async def answer_all(self) -> None:
        for call, answer in enumerate(self._answers):
            if not answer.done():
                await self.answer(call)

    async def answer(self, call: int, problem: KagziError | None = None) -> None:
        if problem is not None:
            self._answers[call].set_exception(problem)
        else:
            self._answers[call].set_result([-item for item in self.calls[call]])
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def outbox(server: Server, parallel: int = 2) -> AsyncIterator[Outbox[int, int]]:
    box: Outbox[int, int] = Outbox(server.send, parallel=parallel)
    yield box
    closing = asyncio.create_task(box.close())
    while not closing.done():
        await turns()
        await server.answer_all()


async def test_what_is_locked_is_sent_again_alone_and_nobody_waits_for_it() -> None:
    server = Server()
    async with outbox(server) as box:
        replies = [box.submit("default", item, 1) for item in range(4)]
        await turns()
        server._answers[0].set_result([0, Locked("by process 7"), -2, -3])
        await turns()
        assert server.calls == [[0, 1, 2, 3], [1]]
        assert [reply.done() for reply in replies] == [True, False, True, True]
        later = box.submit("default", 9, 1)
        await turns()
        await server.answer(2)
        assert await later == -9  # what is sent now does not wait either
        server._answers[1].set_result([Locked("by process 7")])
        await turns()
        assert isinstance(replies[1].answer, Locked)  # it has waited alone
        assert len(server.calls) == 3


async def test_what_is_said_in_one_turn_goes_together_and_at_once() -> None:
    server = Server()
    async with outbox(server) as box:
        replies = [box.submit("default", item, 1) for item in range(5)]
        await turns()
        assert server.calls == [[0, 1, 2, 3, 4]]
        await server.answer(0)
        assert [await reply for reply in replies] == [0, -1, -2, -3, -4]


async def test_many_items_go_in_two_calls() -> None:
    server = Server()
    async with outbox(server) as box:
        for item in range(100):
            box.submit("default", item, 1)
        await turns()
        assert server.sizes == [50, 50]
        assert [item for call in server.calls for item in call] == list(range(100))


async def test_a_small_call_waits_beside_a_large_one() -> None:
    server = Server()
    async with outbox(server, parallel=3) as box:
        for item in range(100):
            box.submit("default", item, 1)
        await turns()
        for item in range(24):
            box.submit("default", item, 1)
        await turns()
        assert server.sizes == [50, 50]
        box.submit("default", 24, 1)
        await turns()
        assert server.sizes == [50, 50, 25]


async def test_nothing_waits_once_no_call_is_under_way() -> None:
    server = Server()
    async with outbox(server) as box:
        for item in range(100):
            box.submit("default", item, 1)
        await turns()
        late = box.submit("default", 100, 1)
        await turns()
        await server.answer(0)
        assert server.sizes == [50, 50]
        await server.answer(1)
        assert server.sizes == [50, 50, 1]
        await server.answer(2)
        assert await late == -100


async def test_small_calls_go_side_by_side_up_to_the_bound() -> None:
    server = Server()
    async with outbox(server) as box:
        for item in range(3):
            box.submit("default", item, 1)
            await turns()
        assert server.calls == [[0], [1]]
        await server.answer(0)
        assert server.calls == [[0], [1], [2]]


async def test_a_call_has_a_most_of_items_and_of_bytes() -> None:
    server = Server()
    async with outbox(server) as box:
        for item in range(3 * CALL_ITEMS):
            box.submit("default", item, 1)
        await turns()
        assert server.sizes == [CALL_ITEMS, CALL_ITEMS]
    heavy = Server()
    async with outbox(heavy) as box:
        for item in range(3):
            box.submit("default", item, CALL_BYTES // 2 + 1)
        await turns()
        assert heavy.calls == [[0], [1]]


async def test_a_call_that_fails_fails_each_by_itself_and_nobody_else() -> None:
    server = Server()
    async with outbox(server, parallel=1) as box:
        first = [box.submit("default", item, 1) for item in range(2)]
        await turns()
        second = box.submit("default", 2, 1)
        await server.answer(0, NotFound("no"))
        await server.answer(1)
        errors = await asyncio.gather(*first, return_exceptions=True)
        assert [type(error) for error in errors] == [NotFound, NotFound]
        assert errors[0] is not errors[1]
        assert await second == -2


async def test_closing_waits_for_what_is_here_and_takes_nothing_more() -> None:
    server = Server()
    async with outbox(server, parallel=1) as box:
        reply = box.submit("default", 1, 1)
        await turns()
        queued = box.submit("default", 2, 1)
        closing = asyncio.create_task(box.close())
        await turns()
        late = await asyncio.gather(box.submit("default", 3, 1), return_exceptions=True)
        assert isinstance(late[0], Unavailable)
        await server.answer(0)
        assert not closing.done()
        await server.answer(1)
        await closing
        assert (await reply, await queued) == (-1, -2)
