"""Several servers, any of which will do: one is used until it fails, then the next.

gRPC does this by itself for a name with several addresses (see `channel.py`). It has nothing for several names: a list
of addresses would be resolved once and for all, and certificates could not be checked against the name that each of
them is for. So every server has a channel of its own here, which connects when it is first used.

The order is by chance, so that callers of a server that died spread over the others. Who repeats a call, and after
which pause, is not decided here: the failed call fails, and the next one takes another way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from kagzi.errors import KagziError, LimitExceeded, Unavailable
from kagzi.rpc.authorization import MetadataSource
from kagzi.rpc.channel import AioChannel, Channel, ThreadChannel, no_server
from kagzi.rpc.tls import ClientTls

M = TypeVar("M", bound=Message)

_FIRST_TURN_SECONDS: Final = 0.25  # what has not connected by then goes on trying while it is the others' turn
_LONGEST_TURN_SECONDS: Final = 2.0


def channel_to(
    target: str, *, threaded: bool, tls: ClientTls | None, metadata: MetadataSource, jitter: Callable[[], float]
) -> Channel:
    """`target` is host:port, or several of them with commas between."""
    make = ThreadChannel if threaded else AioChannel
    servers = sorted(target.split(","), key=lambda _: jitter())
    channels = [make(server, tls=tls, metadata=metadata) for server in servers]
    return channels[0] if len(channels) == 1 else FailoverChannel(channels, target)


class FailoverChannel:
    """`channel.Channel` over several."""

    def __init__(self, channels: Sequence[Channel], target: str) -> None:
        self._channels = channels
        self._target = target
        self._used = 0

    async def call(self, service: str, rpc: str, request: Message, answer: type[M], seconds: float) -> M:
        used = self._used
        try:
            return await self._channels[used].call(service, rpc, request, answer, seconds)
        except LimitExceeded:
            # It is there and has too much to do. The next one would have, too, if everybody went there.
            raise
        except Unavailable:
            self._leave(used)
            raise

    async def connect(self, seconds: float) -> None:
        """To the first that answers, each in its turn."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        turn = _FIRST_TURN_SECONDS
        while True:
            problem: KagziError = no_server(self._target.replace(",", ", "))
            for _ in self._channels:
                used = self._used
                try:
                    return await self._channels[used].connect(turn)
                except Unavailable:
                    self._leave(used)
                except KagziError as error:
                    problem = error
                    self._leave(used)
            # What is wrong with one (its certificate, for example) matters only if no other can be used, but then at
            # once: waiting does not mend it.
            if not isinstance(problem, Unavailable) or loop.time() >= deadline:
                raise problem
            turn = min(turn * 2, _LONGEST_TURN_SECONDS)

    async def close(self) -> None:
        await asyncio.gather(*[channel.close() for channel in self._channels])

    def _leave(self, used: int) -> None:
        """For the next one, unless somebody else who used the same has done so."""
        if used == self._used:
            self._used = (used + 1) % len(self._channels)
