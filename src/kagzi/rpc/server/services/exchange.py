"""ExchangeService: calls that share a stream.

Every call on it runs in a task of its own and goes the way of any other call, guard included (`rpc.respond`). Answers
that are ready while a message is being sent go along in the next one. A caller that waits and has heard nothing for a
while is sent an empty message: a sign that this server does not hang.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from kagzi._proto.v1.exchange_pb2 import ExchangedAnswer, ExchangedCall, ExchangeRequest, ExchangeResponse
from kagzi.errors import InvalidRequest, LimitExceeded
from kagzi.rpc import limits
from kagzi.rpc.methods import EXCHANGE
from kagzi.rpc.server.calls import CallAlone, CallOnStream
from kagzi.rpc.server.parts import Parts
from kagzi.rpc.server.respond import Failed, Responder, failure
from kagzi.rpc.server.services.host import Call, Host
from kagzi.rpc.server.unfinished import Listening, Unfinished
from kagzi.rpc.status import Refused, unknown_method

_MOST_UNSENT: Final = 1000  # answers; a caller that does not take them is not listened to
_LIGHT: Final = 16 * 1024  # bytes of a request that are not worth counting
_PARTS: Final = Parts(ExchangeRequest)
_TOO_MUCH: Final = "more has come of messages that are not whole yet than the server keeps; trying again later is safe"
_FEW: Final = 2  # calls under way, the poll of a worker among them


class ExchangeService:
    def __init__(self, host: Host, responders: Mapping[str, Responder], unfinished: Unfinished) -> None:
        self.host = host
        self._responders = responders
        self._unfinished = unfinished
        self.calls = 0  # under way on all streams

    async def Exchange(self, _: None, stream: CallAlone) -> ExchangeResponse:
        """Answers calls until their caller has no more, or the server is about to stop."""
        with self._unfinished.bounded(stream.shown, stream.key_id) as listening:
            await _Exchange(self, stream, listening).run()
        return ExchangeResponse()

    async def answer(self, call: ExchangedCall, about: Call) -> bytes:
        """Answers one call; raises Failed or Refused."""
        responder = self._responders.get(call.method)
        if responder is None:
            raise unknown_method(call.method)
        return await responder(call.request, about)


class _Exchange:
    def __init__(self, service: ExchangeService, stream: CallAlone, listening: Listening) -> None:
        self._service = service
        self._listening = listening
        self._stream: Any = stream.context
        self._room_for = stream.room_for
        self._loop = asyncio.get_running_loop()
        self._shown = stream.shown
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._unsent: deque[ExchangedAnswer] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        self._said = True  # anything, since the last look
        self._looking = self._loop.call_later(limits.SIGN_SECONDS / 2, self._look)

    async def run(self) -> None:
        reader = self._loop.create_task(self._read(), name="kagzi-exchange")
        closing = self._loop.create_task(self._service.host.closing.wait())
        too_much = self._listening.too_much
        try:
            await asyncio.wait((reader, closing, too_much), return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
            elif too_much.done():
                raise LimitExceeded(_TOO_MUCH)
            while self._calls:
                await asyncio.wait(list(self._calls.values()))
            while self._sender is not None:
                await asyncio.wait((self._sender,))
        finally:
            self._looking.cancel()
            for task in (reader, closing, *self._calls.values()):
                task.cancel()
            self._unsent.clear()
            while self._sender is not None:
                # While the first answer is being sent gRPC cannot send a status: the caller would wait for ever.
                await asyncio.wait((self._sender,))

    async def _read(self) -> None:
        while (data := await self._stream.read()) is not grpc.aio.EOF:
            self._listening.heard(len(data))
            request = _read(data)
            del data
            for call in request.calls:
                give = None
                if len(call.request) > _LIGHT and self._room_for is not None:
                    room, size = self._room_for(call.method), len(call.request)
                    await room.take(size)  # nothing more is read meanwhile, and its caller waits
                    give = partial(room.give, size)
                self._begin(call, give)
            for number in request.given_up:
                if (task := self._calls.get(number)) is not None:
                    task.cancel()
            while len(self._unsent) > _MOST_UNSENT:
                self._sent.clear()
                await self._sent.wait()

    def _begin(self, call: ExchangedCall, give: Callable[[], None] | None) -> None:
        """Begins a call; `give` frees the room that was taken for it."""
        if call.number in self._calls or self._service.calls >= limits.MAXIMUM_CALLS:
            if give is not None:
                give()
            if call.number in self._calls:
                raise InvalidRequest(f"two calls on one stream have the number {call.number}")
            self._refuse(call)
            return
        task = self._loop.create_task(self._answer(call), name="kagzi-call")
        self._calls[call.number] = task
        self._service.calls += 1
        task.add_done_callback(partial(self._ended, call.number, give))

    def _ended(self, number: int, give: Callable[[], None] | None, task: asyncio.Task[None]) -> None:
        if give is not None:
            give()
        if self._calls.get(number) is task:
            del self._calls[number]
        self._service.calls -= 1

    def _refuse(self, call: ExchangedCall) -> None:
        """Refuses a call without making a task, since what is refused for being too much is to cost little."""
        error = LimitExceeded("more calls are under way than the server allows; trying again later is safe")
        self._unsent.append(self._failed(call, error, self._about(call)))
        if self._sender is None:
            self._send_beside()

    def _about(self, call: ExchangedCall) -> CallOnStream:
        return CallOnStream(self._shown, self._loop.time, call.timeout_us)

    def _failed(self, call: ExchangedCall, error: Exception, about: Call) -> ExchangedAnswer:
        failed = error if isinstance(error, Failed) else failure(error, EXCHANGE.rpc, about, self._service.host)
        return ExchangedAnswer(number=call.number, status=failed.status.value[0], error=failed.detail)

    async def _answer(self, call: ExchangedCall) -> None:
        about = self._about(call)
        try:
            response = await self._service.answer(call, about)
            answer = ExchangedAnswer(number=call.number, response=response)
        except (Failed, Refused) as error:
            answer = self._failed(call, error, about)
        self._unsent.append(answer)
        if self._sender is not None:
            return
        if len(self._calls) > _FEW:
            self._send_beside()
        else:
            # Hardly ever is there another whose answer could go along. Giving up a call does not cut its answer short.
            self._sender = self._calls.pop(call.number)
            await self._send()

    def _look(self) -> None:
        self._looking = self._loop.call_later(limits.SIGN_SECONDS / 2, self._look)
        if not self._said and self._calls and self._sender is None:
            self._send_beside()
        self._said = False

    def _send_beside(self) -> None:
        self._sender = self._loop.create_task(self._send(), name="kagzi-answers")

    async def _send(self) -> None:
        try:
            while True:
                message = self._next_message()
                self._said = True
                self._sent.set()
                await self._stream.write(message)
                if not self._unsent:
                    break
        except grpc.aio.BaseError:
            # The caller is gone, and the reader hears of it, if it does not wait for room.
            self._unsent.clear()
            self._sent.set()
        finally:
            self._sender = None

    def _next_message(self) -> bytes:
        response = ExchangeResponse()
        room = limits.ANSWER_BYTES
        while self._unsent:
            room -= self._unsent[0].ByteSize()
            if room < 0 and response.answers:
                break  # a large one goes by itself: with others it might be more than a message may hold
            response.answers.append(self._unsent.popleft())
        return response.SerializeToString()


def _read(data: bytes) -> ExchangeRequest:
    _PARTS.check(data)
    try:
        request = ExchangeRequest.FromString(data)
    except DecodeError:
        raise InvalidRequest("the message is not a readable ExchangeRequest") from None
    # A message is taken in at one go, and everybody else's calls wait meanwhile.
    for field, count in (("calls", len(request.calls)), ("given_up", len(request.given_up))):
        if count > limits.CALL_ITEMS:
            raise InvalidRequest(f"{field} has {count:,} items; at most {limits.CALL_ITEMS:,} go into one message")
    return request
