"""In which messages the answers to the calls of a stream go, on a stream that is slow when it shall be."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest

from kagzi._proto.v1.common_pb2 import ErrorDetail
from kagzi._proto.v1.exchange_pb2 import ExchangedCall, ExchangeRequest, ExchangeResponse
from kagzi.clock import SystemClock
from kagzi.errors import InvalidRequest
from kagzi.ids import RandomIds
from kagzi.ports.closing import Closing
from kagzi.rpc import limits
from kagzi.rpc.server.calls import CallAlone
from kagzi.rpc.server.respond import Failed
from kagzi.rpc.server.services import exchange as server_side
from kagzi.rpc.server.services.exchange import ExchangeService, _Exchange
from kagzi.rpc.server.unfinished import Listening


class Stream:
    """`grpc.aio.ServicerContext`, as far as it is used."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[list[int]] = []  # the numbers of the answers in each message
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.gone = False
        self.writing = 0

    def invocation_metadata(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> Any:
        return await self.asked.get()

    async def write(self, data: bytes) -> None:
        self.writing += 1
        assert self.writing == 1
        await self.may_go.wait()
        self.writing -= 1
        if self.gone:
            raise grpc.aio.InternalError("Failed execute_batch")
        self.sent.append([answer.number for answer in ExchangeResponse.FromString(data).answers])

    def ask(self, *numbers: int, given_up: tuple[int, ...] = ()) -> None:
        calls = [ExchangedCall(number=number) for number in numbers]
        self.asked.put_nowait(ExchangeRequest(calls=calls, given_up=given_up).SerializeToString())


class Host:
    def __init__(self) -> None:
        self.closing = Closing()
        self.ids = RandomIds(SystemClock().now)


class Service:
    """Answers the calls whose numbers are in `ready`, in the turn they become so."""

    def __init__(self) -> None:
        self.host = Host()
        self.calls = 0
        self.ready: set[int] = set()
        self.responses: dict[int, bytes | Failed] = {}
        self.looks = asyncio.Condition()

    async def answer(self, call: ExchangedCall, *_: object) -> bytes:
        async with self.looks:
            await self.looks.wait_for(lambda: call.number in self.ready)
        response = self.responses.get(call.number, b"answer")
        if isinstance(response, Failed):
            raise response
        return response

    async def make_ready(self, *numbers: int) -> None:
        async with self.looks:
            self.ready.update(numbers)
            self.looks.notify_all()
        await turns()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def listening() -> Listening:
    return Listening(None, asyncio.get_running_loop().create_future())


@asynccontextmanager
async def exchanging() -> AsyncIterator[tuple[Service, Stream, asyncio.Task[None]]]:
    service, stream = Service(), Stream()
    call = CallAlone(cast("Any", stream))
    exchange = asyncio.create_task(_Exchange(cast("ExchangeService", service), call, listening()).run())
    yield service, stream, exchange
    stream.asked.put_nowait(grpc.aio.EOF)
    async with asyncio.timeout(10):
        await exchange
    assert service.calls == 0


async def test_answers_that_are_ready_together_go_together() -> None:
    async with exchanging() as (service, stream, _):
        stream.ask(1, 2, 3)
        await turns()
        await service.make_ready(1, 2)
        assert sorted(map(sorted, stream.sent)) == [[1, 2]]
        await service.make_ready(3)
        assert sorted(map(sorted, stream.sent)) == [[1, 2], [3]]


async def test_what_is_answered_while_a_message_is_being_sent_goes_along_in_the_next() -> None:
    async with exchanging() as (service, stream, _):
        stream.may_go.clear()
        stream.ask(1)
        await service.make_ready(1)
        stream.ask(2, 3)
        await turns()
        await service.make_ready(2, 3)
        assert stream.sent == []
        stream.may_go.set()
        await turns()
        assert list(map(sorted, stream.sent)) == [[1], [2, 3]]


async def test_a_call_that_is_given_up_while_its_answer_is_being_sent_does_not_cut_it_short() -> None:
    async with exchanging() as (service, stream, _):
        stream.may_go.clear()
        stream.ask(1)
        await service.make_ready(1)
        stream.ask(given_up=(1,))
        await turns()
        stream.may_go.set()
        await turns()
        assert stream.sent == [[1]]


async def test_the_number_of_a_call_whose_answer_is_being_sent_may_be_used_again() -> None:
    async with exchanging() as (service, stream, _):
        stream.may_go.clear()
        stream.ask(1)
        await service.make_ready(1)
        service.ready.clear()
        stream.ask(1)
        await turns()
        stream.may_go.set()
        await turns()
        assert stream.sent == [[1]]
        assert service.calls == 1
        await service.make_ready(1)
        assert stream.sent == [[1], [1]]


async def test_a_server_that_closes_sends_its_answers_first() -> None:
    async with exchanging() as (service, stream, exchange):
        stream.may_go.clear()
        stream.ask(1)
        await service.make_ready(1)
        service.host.closing.set()
        await turns()
        assert not exchange.done()
        stream.may_go.set()
        await turns()
        assert exchange.done()
        assert stream.sent == [[1]]


@pytest.mark.parametrize("calls", [1, 5])
async def test_a_stream_that_makes_no_sense_ends_when_no_answer_is_being_sent(calls: int) -> None:
    """While the first one is, gRPC cannot send a status, and the caller would never hear that the stream has ended."""
    service, stream = Service(), Stream()
    call = CallAlone(cast("Any", stream))
    exchange = asyncio.create_task(_Exchange(cast("ExchangeService", service), call, listening()).run())
    stream.may_go.clear()
    stream.ask(*range(1, calls + 2))
    await turns()
    await service.make_ready(*range(1, calls + 1))
    stream.asked.put_nowait(b"\xff\xff")
    await turns()
    assert service.calls == int(calls == 1)  # that which sends its own answer; the other is given up
    assert not exchange.done()
    stream.may_go.set()
    await turns()
    assert exchange.done()
    with pytest.raises(InvalidRequest):
        await exchange
    assert service.calls == 0


@pytest.mark.parametrize("calls", [1, 5])
async def test_answers_for_a_caller_that_is_gone_are_dropped_without_a_word(
    calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with exchanging() as (service, stream, _):
        stream.gone = True
        stream.ask(*range(1, calls + 1))
        await turns()
        await service.make_ready(*range(1, calls + 1))
    gc.collect()
    assert not caplog.records


async def test_a_reader_that_waits_for_room_hears_that_the_caller_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side, "_MOST_UNSENT", 1)
    async with exchanging() as (service, stream, _):
        stream.may_go.clear()
        stream.ask(1, 2, 3, 4)
        await turns()
        await service.make_ready(1)
        await service.make_ready(2, 3, 4)
        stream.ask()
        await turns()
        assert stream.asked.empty()
        stream.gone = True
        stream.may_go.set()


async def test_what_is_beyond_the_bound_of_calls_is_refused_without_being_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAXIMUM_CALLS", 2)
    async with exchanging() as (service, stream, _):
        stream.ask(1, 2, 3, 4)
        await turns()
        assert service.calls == 2
        assert stream.sent == [[3, 4]]
        await service.make_ready(1)
        stream.ask(3)
        await service.make_ready(2, 3)
        assert sorted(number for numbers in stream.sent for number in numbers) == [1, 2, 3, 3, 4]


ERROR = Failed(grpc.StatusCode.INVALID_ARGUMENT, ErrorDetail(message="x" * 400))


@pytest.mark.parametrize(
    ("responses", "sent"),
    [
        ([ERROR] * 5, [[1, 2], [3, 4], [5]]),
        ([b"x" * 400] * 5, [[1, 2], [3, 4], [5]]),
        ([b""] * 200, [list(range(1, 201))]),
        ([b"x" * 100, b"x" * 5000, b"x" * 100], [[1], [2], [3]]),
    ],
)
async def test_a_message_holds_what_fits_into_it(
    monkeypatch: pytest.MonkeyPatch, responses: list[bytes | Failed], sent: list[list[int]]
) -> None:
    """More than that, and the other end would refuse it, which ends the stream; one that is large goes by itself."""
    monkeypatch.setattr(limits, "ANSWER_BYTES", 1000)
    async with exchanging() as (service, stream, _):
        service.responses = dict(enumerate(responses, 1))
        stream.ask(*service.responses)
        await turns()
        await service.make_ready(*service.responses)
        assert stream.sent == sent
