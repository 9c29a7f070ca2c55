"""Counts the bytes of messages that have not arrived whole, and ends the streams with the most when it is too much.

gRPC takes a message in as soon as somebody is ready to read one, whatever its size, and hands over nothing of it before
its end. Calls that come by themselves are read when there is room for them (`receiving`). A stream of calls always has
somebody who reads, so that each of a thousand could hold all but the last byte of the largest message. gRPC does not
tell how much that is. The kernel does, for a connection: what it has received, less what has become messages since.

What goes along with messages (headers, pings, windows, TLS) is forgiven generously: an honest connection stays near
zero, and who lives off the forgiving has to send messages for it, which cost more than they gain. Where the kernel does
not tell (other systems than Linux) nothing is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kagzi.rpc import limits
from kagzi.rpc.server.calls import CallerHeaders

_LOOK_SECONDS: Final = 0.05  # how often memory is looked at, which is cheap
_FULL_LOOK: Final = 40  # every so many looks connections are, too, whether memory has grown or not
_GROWTH: Final = 16 * 1024 * 1024  # of memory, and connections are looked at

# Of one that carries small messages about 60 bytes go along with each, in both directions.
_FORGIVEN_PER_MESSAGE: Final = 256
_FORGIVEN_PART: Final = 16  # and of large ones this part
_FORGIVEN_PER_LOOK: Final = 1024
_FORGIVEN_PER_CALL: Final = 512  # and its metadata

_KERNEL_TELLS: Final = sys.platform == "linux" and os.path.isdir("/proc/self/fd")
_TCP_INFO: Final = 11
_MAPPED: Final = "::ffff:"  # before an IPv4 address on a socket of both kinds
_INFO_BYTES: Final = 256
_BYTES_RECEIVED: Final = 128  # where `tcpi_bytes_received` stands in Linux's `struct tcp_info`
_PAGE: Final = mmap.PAGESIZE


class Unfinished:
    """Watches the connections to a port, which `port` tells once there are any."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._connections: dict[str, _Connection] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._memory = 0  # when connections were looked at last
        self._looks = 0

    @contextmanager
    def bounded(self, shown: CallerHeaders, key_id: str | None) -> Iterator[Listening]:
        """Surrounds a stream of calls. It says `too_much` to one that has to end."""
        listening = Listening(key_id, self._loop.create_future())
        if not _KERNEL_TELLS:
            yield listening
            return
        peer = shown.peer_name
        connection = self._connections.setdefault(peer, _Connection())
        connection.streams.append(listening)
        listening.connection = connection
        connection.begun(shown)
        if self._timer is None:
            self._memory = _memory()
            self._look_later()
        try:
            yield listening
        finally:
            connection.streams.remove(listening)  # the connection stays known: what came on it is not to count twice

    def heard(self, shown: CallerHeaders, size: int) -> None:
        """Notes that a message has come in a call by itself, perhaps on the connection of a stream."""
        if (connection := self._connections.get(shown.peer_name)) is not None:
            connection.heard(size)
            connection.begun(shown)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        streams = sum(len(connection.streams) for connection in self._connections.values())
        if not streams:
            self._connections.clear()
            return
        self._look_later()
        if streams * limits.MESSAGE_BYTES <= limits.UNFINISHED_BYTES_PER_KEY:
            return  # they cannot hold more, whatever they do
        self._looks += 1
        memory = _memory()
        if memory - self._memory > _GROWTH or self._looks % _FULL_LOOK == 0:
            self._look_at_connections()
            memory = _memory()
        elif memory > self._memory:
            return
        self._memory = memory

    def _look_at_connections(self) -> None:
        received = _received(self._port())
        for peer, connection in list(self._connections.items()):
            if (count := received.get(peer)) is not None:
                connection.has_received(count)
            elif not connection.streams:
                del self._connections[peer]
        for key_id, most in ((None, limits.UNFINISHED_BYTES), *self._keys().items()):
            self._end_largest(key_id, most)

    def _keys(self) -> dict[str | None, int]:
        found = {connection.key_id() for connection in self._connections.values()} - {None}
        return dict.fromkeys(found, limits.UNFINISHED_BYTES_PER_KEY)

    def _end_largest(self, key_id: str | None, most: int) -> None:
        """Ends streams of the connections with the most, until those of the key (None: of all) have no more than this.
        A connection of several keys, as a proxy makes them, counts for none of them, and may have as much as a key."""
        held: Counter[str] = Counter()
        for peer, connection in self._connections.items():
            if key_id is None or connection.key_id() == key_id:
                held[peer] = connection.unfinished
                if key_id is None and connection.shared() and connection.unfinished > limits.UNFINISHED_BYTES_PER_KEY:
                    connection.end()
        total = held.total()
        for peer, size in held.most_common():
            if total <= most:
                break
            self._connections[peer].end()
            total -= size


class Listening:
    """A stream of calls. Who reads from it says what it `heard`; `too_much` is done when it has to end."""

    __slots__ = ("connection", "key_id", "too_much")

    def __init__(self, key_id: str | None, too_much: asyncio.Future[None]) -> None:
        self.key_id = key_id
        self.too_much = too_much
        self.connection: _Connection | None = None

    def heard(self, size: int) -> None:
        if self.connection is not None:
            self.connection.heard(size)


class _Connection:
    __slots__ = ("_forgiven", "_messages", "_received", "_size", "streams", "unfinished")

    def __init__(self) -> None:
        self.streams: list[Listening] = []
        self.unfinished = 0
        self._forgiven = 0
        self._received: int | None = None
        self._messages = 0
        self._size = 0

    def begun(self, shown: CallerHeaders) -> None:
        """Notes that a call has begun, by itself or a stream."""
        self._forgiven += _FORGIVEN_PER_CALL + sum(map(len, shown.headers)) + sum(map(len, shown.headers.values()))

    def heard(self, size: int) -> None:
        self._messages += 1
        self._size += size

    def has_received(self, count: int) -> None:
        """Takes the kernel's count of bytes that have come since the connection was made. Calls may have come before
        the first stream: nobody counted those, so of what came before the first look no more counts than the streams
        can hold."""
        if self._received is None:
            come = min(count, len(self.streams) * limits.MESSAGE_BYTES)
        else:
            come = count - self._received
        self._received = count
        went_along = self._messages * _FORGIVEN_PER_MESSAGE + self._size // _FORGIVEN_PART + _FORGIVEN_PER_LOOK
        self.unfinished = max(0, self.unfinished + come - self._size - went_along - self._forgiven)
        self._messages = self._size = self._forgiven = 0

    def key_id(self) -> str | None:
        """The key to which all streams of the connection belong; None if there is none, or several."""
        return self.streams[0].key_id if self.streams and not self.shared() else None

    def shared(self) -> bool:
        return len({stream.key_id for stream in self.streams}) > 1

    def end(self) -> None:
        for stream in self.streams:
            if not stream.too_much.done():
                stream.too_much.set_result(None)
        self.unfinished = 0


def _peer(connection: socket.socket) -> str:
    """Returns who is at the other end, as gRPC names it: `ipv4:10.0.0.7:50312`, `ipv6:[::1]:50312`."""
    host, port = connection.getpeername()[:2]
    if connection.family == socket.AF_INET:
        return f"ipv4:{host}:{port}"
    return f"ipv4:{host.removeprefix(_MAPPED)}:{port}" if host.startswith(_MAPPED) else f"ipv6:[{host}]:{port}"


def _received(port: int) -> dict[str, int]:
    """Returns what has been received on each connection to the port. Descriptors may close meanwhile, or become others:
    they are only asked, and what is no such connection is passed over."""
    found: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            connection = socket.socket(fileno=int(name))
            try:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
                if len(info) >= _BYTES_RECEIVED + 8:
                    found[_peer(connection)] = struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]
            finally:
                connection.detach()
    return found


def _memory() -> int:
    """Returns the bytes of this process that are in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
