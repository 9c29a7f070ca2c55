"""Several servers, any of which will do: one is used until it fails or hangs, then the next.

gRPC does this by itself for a name with several addresses (see `channel.py`). It has nothing for several names: a list
of addresses would be resolved once and for all, and certificates could not be checked against the name that each of
them is for. So every server has a channel of its own here, which connects when it is first used.

The order is by chance, so that callers of a server that died spread over the others. Heartbeats, which have channels
of their own, move with everything else (`Choice`). Who repeats a call, and after which pause, is not decided here: the
failed call fails, and the next one takes another way.

A single server is left, too, for itself by a new connection: behind its name there may be others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import Message

from kagzi.errors import KagziError, LimitExceeded, Locked, Unavailable
from kagzi.rpc.client.authorization import MetadataSource
from kagzi.rpc.client.channel import AioChannel, Channel, ThreadChannel, no_server
from kagzi.rpc.tls import ClientTls

M = TypeVar("M", bound=Message)

_FIRST_TURN_SECONDS: Final = 0.25  # what has not connected by then goes on trying while it is the others' turn
_LONGEST_TURN_SECONDS: Final = 2.0
_NEW_CHANNEL_SECONDS: Final = 0.2


class Choice:
    """Which of several servers is used, by all channels of a client: also by those of another thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.used = 0

    def leave(self, server: int) -> None:
        """Goes over to the next one, unless that was done meanwhile."""
        if self.used == server:
            self.used = (server + 1) % self._count


def in_order(target: str, jitter: Callable[[], float]) -> tuple[str, ...]:
    """Returns the servers of a target, host:port or several of them with commas between, in an order by chance."""
    return tuple(sorted(target.split(","), key=lambda _: jitter()))


def channel_to(
    servers: Sequence[str], choice: Choice, *, threaded: bool, tls: ClientTls | None, metadata: MetadataSource
) -> FailoverChannel:
    make = ThreadChannel if threaded else AioChannel
    makes = [partial(make, server, tls=tls, metadata=metadata) for server in servers]
    return FailoverChannel(makes, ",".join(servers), choice)


class FailoverChannel:
    """`channel.Channel` over several."""

    def __init__(self, makes: Sequence[Callable[[], Channel]], target: str, choice: Choice | None = None) -> None:
        self._makes = makes
        self._channels = [make() for make in makes]
        self._target = target
        self._choice = choice or Choice(len(makes))
        self._loop = asyncio.get_running_loop()
        self._made_at = self._loop.time()
        self._calls = Counter[Channel]()  # under way
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, service: str, rpc: str, request: Message, answer: type[M], seconds: float) -> M:
        server = self._choice.used
        channel = self._channels[server]
        self._calls[channel] += 1
        try:
            return await channel.call(service, rpc, request, answer, seconds)
        except (LimitExceeded, Locked):
            # It is there. The next one would soon have too much to do as well, and it has the same database.
            raise
        except Unavailable:
            self._leave(server, channel)
            raise
        finally:
            self._calls[channel] -= 1
            if not self._calls[channel]:
                del self._calls[channel]
                if channel not in self._channels:
                    self._close_later(channel)

    async def connect(self, seconds: float) -> None:
        """Connects to the first server that answers, trying each in its turn."""
        if len(self._channels) == 1:
            return await self._channels[0].connect(seconds)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        turn = _FIRST_TURN_SECONDS
        while True:
            problem: KagziError = no_server(self._target.replace(",", ", "))
            for _ in self._channels:
                server = self._choice.used
                try:
                    return await self._channels[server].connect(turn)
                except Unavailable:
                    pass
                except KagziError as error:
                    problem = error
                self._choice.leave(server)
            # What is wrong with one (its certificate, for example) matters only if no other can be used, but then at
            # once: waiting does not mend it.
            if not isinstance(problem, Unavailable) or loop.time() >= deadline:
                raise problem
            turn = min(turn * 2, _LONGEST_TURN_SECONDS)

    async def close(self) -> None:
        left = [channel for channel in self._calls if channel not in self._channels]
        await asyncio.gather(*[channel.close() for channel in (*self._channels, *left)], *self._closing)

    def _leave(self, server: int, channel: Channel) -> None:
        """Goes over to the next server, unless another call on this one has done so.

        A channel that could not connect tries again by itself, ever more rarely, and fails every call meanwhile. So
        whoever comes back to that server later does so with a new channel, which tries at once; but not over and over
        while nobody answers.
        """
        if self._channels[server] is not channel:
            return
        now = self._loop.time()
        if now - self._made_at >= _NEW_CHANNEL_SECONDS:
            self._made_at = now
            self._channels[server] = self._makes[server]()
            if not self._calls[channel]:
                self._close_later(channel)
        self._choice.leave(server)

    def _close_later(self, channel: Channel) -> None:
        task = self._loop.create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
