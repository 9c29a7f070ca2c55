"""Calls as services see them, by themselves or on a stream with others, and what their caller shows of itself."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote

import grpc

from kagzi.access.caller import shown_key
from kagzi.access.shares import Room
from kagzi.core.instant import SECOND, Span


class CallerHeaders:
    """What a caller shows of itself, in forms that the gate takes. All calls of a stream show the same."""

    __slots__ = ("actor", "headers", "key", "metadata", "peer", "peer_name")

    def __init__(self, metadata: grpc.aio.Metadata | None, peer: str) -> None:
        self.metadata = metadata
        self.peer = peer
        self.headers = {key: value for key, value in metadata or () if isinstance(value, str)}
        self.key = shown_key(self.headers.get("authorization"))
        self.actor = ""  # whom the gate has found it to be, for calls that note it
        self.peer_name = unquote(peer)  # gRPC writes ipv6:%5B::1%5D:50312


class CallAlone:
    """`services.host.Call`: one that has a stream of gRPC to itself. `room_for` says where the bytes of calls on it are
    kept, by method, once it is known whose it is; `key_id` is whose."""

    __slots__ = ("context", "key_id", "room_for", "shown")

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self.context = context
        self.shown = CallerHeaders(context.invocation_metadata(), context.peer())
        self.room_for: Callable[[str], Room] | None = None
        self.key_id: str | None = None

    def time_remaining(self) -> float | None:
        return self.context.time_remaining()

    def invocation_metadata(self) -> grpc.aio.Metadata | None:
        return self.shown.metadata

    def peer(self) -> str:
        return self.shown.peer

    @property
    def actor(self) -> str:
        return self.shown.actor

    @property
    def peer_name(self) -> str:
        return self.shown.peer_name


class CallOnStream:
    """`services.host.Call`."""

    __slots__ = ("_ends", "_time", "shown")

    def __init__(self, shown: CallerHeaders, time: Callable[[], float], timeout: Span) -> None:
        self.shown = shown
        self._time = time
        self._ends = time() + timeout / SECOND if timeout > 0 else None

    def time_remaining(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - self._time())

    def invocation_metadata(self) -> grpc.aio.Metadata | None:
        return self.shown.metadata

    def peer(self) -> str:
        return self.shown.peer

    @property
    def actor(self) -> str:
        return self.shown.actor

    @property
    def peer_name(self) -> str:
        return self.shown.peer_name
