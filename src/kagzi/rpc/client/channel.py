"""The way to a server: calls with deadlines, and errors of our own tree.

`AioChannel` belongs to the event loop it was made on. grpc.aio shares one completion queue between all event loops of a
process, so a second loop (the heartbeat thread's) would be woken for the first one's calls, and sometimes wait behind
them. `ThreadChannel` therefore uses gRPC's own threads, and a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from kagzi.errors import InvalidRequest, PayloadTooLarge, Unavailable
from kagzi.rpc import limits
from kagzi.rpc.client.authorization import Metadata, MetadataSource, nothing
from kagzi.rpc.client.diagnosis import diagnose
from kagzi.rpc.client.exchange import Exchange, NotOffered, Unheard, silence
from kagzi.rpc.convert.unknown import unknown_value
from kagzi.rpc.methods import EXCHANGE, METHODS, path
from kagzi.rpc.status import error_of_call
from kagzi.rpc.tls import ClientTls

M = TypeVar("M", bound=Message)

CONNECT_SECONDS = 10.0
# A server that has lost its database lets nobody into a stream, and still answers this.
_ALONE = "HealthCheck"
_DOUBT_SECONDS = 1.0  # without a connection for this long, find out why
# Of a name with several addresses gRPC uses one, and the next when that fails: in an order by chance, so that not
# everybody is at the first.
_ANY_ADDRESS = '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES + limits.ENVELOPE_BYTES),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
    ("grpc.max_metadata_size", 4 * limits.METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 8 * limits.METADATA_BYTES),
    ("grpc.keepalive_time_ms", limits.KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", limits.KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", limits.PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Connecting again: soon at first, then more patiently; gRPC adds the jitter.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Channels to one server would otherwise share a connection, and heartbeats are to have their own.
    ("grpc.use_local_subchannel_pool", 1),
    # We repeat calls ourselves, and know for how long that is worth while.
    ("grpc.enable_retries", 0),
    ("grpc.service_config", _ANY_ADDRESS),
)


_user: int | None = None  # the process that has used gRPC here


def use_grpc() -> None:
    """Refuses to use gRPC in a process that was forked from one that did: its threads are missing here, and every call
    would wait for ever."""
    global _user
    if _user is not None and _user != os.getpid():
        raise InvalidRequest(
            f"process {os.getpid()} was forked from one that had a connection to a server already, which gRPC does "
            "not survive. Use the app for the first time after the fork: with gunicorn leave out --preload, or start "
            'no runs while modules are imported; with multiprocessing use the start method "spawn"'
        )
    _user = os.getpid()


class Channel(Protocol):
    async def call(self, service: str, rpc: str, request: Message, answer: type[M], seconds: float) -> M:
        """Makes one call, once. Raises what the server's engine raised, or Unavailable."""
        ...

    async def connect(self, seconds: float) -> None:
        """Waits until there is a connection, or leaves that to the first call; Unavailable if there is none in time."""
        ...

    async def close(self) -> None: ...


class AioChannel:
    def __init__(self, target: str, *, tls: ClientTls | None = None, metadata: MetadataSource = nothing) -> None:
        self._target = target
        self._tls = tls
        self._metadata = metadata
        self._calls: dict[str, Any] = {}
        self._closed = False
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, tls.credentials(), options=_OPTIONS)
        self._exchange: Exchange | None = Exchange(self._open_stream, metadata, self._hangs)
        self._alone: set[Any] = set()  # calls under way beside the stream
        self._silent = False

    async def call(self, service: str, rpc: str, request: Message, answer: type[M], seconds: float) -> M:
        name = path(service, rpc)
        data = request.SerializeToString()
        if len(data) > limits.MESSAGE_BYTES:
            raise PayloadTooLarge(
                f"{rpc} would send {len(data):,} bytes; at most {limits.MESSAGE_BYTES:,} go to a server in one message."
                " Keep large data elsewhere and send a reference to it"
            )
        exchange = None if rpc == _ALONE else self._exchange
        if exchange is not None and len(data) <= limits.EXCHANGE_BYTES:
            try:
                return answer.FromString(await exchange.call(name, data, seconds))
            except Unheard as reason:
                if isinstance(reason, NotOffered):
                    self._exchange = None
            except DecodeError:
                raise unknown_value(f"response to {rpc}") from None
        if exchange is None or self._exchange is None:
            return await self._call_alone(name, request, answer, seconds)
        with exchange.watching():
            return await self._call_alone(name, request, answer, seconds)

    async def _call_alone(self, name: str, request: Message, answer: type[M], seconds: float) -> M:
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = _stub(self._channel, name)
        under_way = None
        try:
            under_way = call(request, timeout=seconds, metadata=self._metadata())
            self._alone.add(under_way)
            response = await under_way
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                if self._silent:
                    raise silence() from None
                if self._closed:
                    raise Unavailable("the engine was closed during the call") from None
            raise
        except grpc.aio.UsageError:
            raise Unavailable("the engine is closed") from None
        finally:
            self._alone.discard(under_way)
        assert isinstance(response, answer)
        return response

    async def connect(self, seconds: float) -> None:
        if not await self._ready(min(seconds, _DOUBT_SECONDS)):
            if (problem := await diagnose(self._target, self._tls)) is not None:
                raise problem
            if not await self._ready(max(0.0, seconds - _DOUBT_SECONDS)):
                raise no_server(self._target)

    async def _ready(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._channel.channel_ready()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self._closed = True
        if self._exchange is not None:
            await self._exchange.close()
        await self._channel.close()

    def _hangs(self) -> None:
        """Gives up what was asked of a server that hangs beside the stream, too."""
        self._silent = True
        for call in self._alone:
            call.cancel()

    def _open_stream(self, metadata: Metadata) -> Any:
        try:
            return self._channel.stream_stream(EXCHANGE.path)(metadata=metadata)
        except grpc.aio.UsageError:
            raise Unavailable("the engine is closed") from None


class ThreadChannel:
    def __init__(self, target: str, *, tls: ClientTls | None = None, metadata: MetadataSource = nothing) -> None:
        self._target = target
        self._tls = tls
        self._metadata = metadata
        self._calls: dict[str, Any] = {}
        if tls is None:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, tls.credentials(), options=_OPTIONS)

    async def call(self, service: str, rpc: str, request: Message, answer: type[M], seconds: float) -> M:
        name = path(service, rpc)
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = _stub(self._channel, name)
        try:
            under_way = call.future(request, timeout=seconds, metadata=self._metadata())
        except ValueError:
            raise Unavailable("the engine is closed") from None
        try:
            response = await _wrapped(under_way)
        except asyncio.CancelledError:
            under_way.cancel()
            raise
        assert isinstance(response, answer)
        return response

    async def connect(self, seconds: float) -> None:
        """The first call does, and fails if there is no connection after `grpc.min_reconnect_backoff_ms`.

        `grpc.channel_ready_future` would wait for one, but watches on a thread of gRPC's that prints a traceback if the
        channel is closed while it looks, which is when a worker stops soon after its start.
        """

    async def close(self) -> None:
        self._channel.close()


def _stub(channel: Any, name: str) -> Any:
    method = METHODS[name]
    return channel.unary_unary(
        name,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )


async def _wrapped(future: Any) -> Any:
    """Awaits a future of gRPC's threads on this loop."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(_set, waiter)

    future.add_done_callback(done)
    await waiter
    try:
        return future.result()
    except grpc.FutureCancelledError:
        raise Unavailable("the engine was closed during the call") from None
    except grpc.RpcError as error:
        raise error_of_call(error) from None


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def no_server(target: str) -> Unavailable:
    return Unavailable(
        f"there is no Kagzi server at {target}. Check host and port (that of gRPC, 50051 unless it was set, not of "
        "HTTP), and that `kagzi server` is running"
    )
