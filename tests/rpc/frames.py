"""HTTP/2 by hand, for what no client of gRPC can be made to send: requests that never end.

>>> async with Connection.to(host, port) as connection:
...     stream = connection.open("/kagzi.v1.WorkflowService/StartWorkflow")
...     sent = await stream.send(beginning_of(15_000_000, data))     # as much as the server takes
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_ACK, _END_HEADERS = 1, 4
_INITIAL_WINDOW: Final = 4  # a setting
_LARGEST_FRAME: Final = 16_384


def beginning_of(size: int, data: bytes) -> bytes:
    """The first bytes of a message that says it is so large."""
    return b"\0" + struct.pack(">I", size) + data


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._window = 65_535
        self._initial = 65_535
        self._streams: dict[int, Stream] = {}
        self._changed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def to(cls, host: str, port: int) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection(host, port)
        connection = cls(reader, writer)
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0))
        listening = asyncio.create_task(connection._listen())
        try:
            yield connection
        finally:
            listening.cancel()
            writer.close()

    def open(self, path: str, *headers: tuple[str, str]) -> Stream:
        number = 2 * len(self._streams) + 1
        stream = self._streams[number] = Stream(self, number, self._initial)
        block = b"".join(
            b"\0" + _text(name) + _text(value)
            for name, value in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "here"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *headers,
            )
        )
        self._writer.write(_frame(_HEADERS, _END_HEADERS, number, block))
        return stream

    async def send(self, stream: Stream, data: bytes, patience: float) -> int:
        sent = 0
        while sent < len(data) and not stream.ended:
            size = min(self._window, stream.window, _LARGEST_FRAME, len(data) - sent)
            if size <= 0:
                self._changed.clear()
                try:
                    async with asyncio.timeout(patience):
                        await self._changed.wait()
                except TimeoutError:
                    break
                continue
            self._writer.write(_frame(_DATA, 0, stream.number, data[sent : sent + size]))
            self._window -= size
            stream.window -= size
            sent += size
            await self._writer.drain()
        return sent

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._heard(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
                self._changed.set()
        for stream in self._streams.values():
            stream.ended = True
        self._changed.set()

    def _heard(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW:
                    for stream in self._streams.values():
                        stream.window += value - self._initial
                    self._initial = value
            self._writer.write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW and number == 0:
            self._window += int.from_bytes(payload, "big")
        elif number in self._streams:
            stream = self._streams[number]
            if kind == _WINDOW:
                stream.window += int.from_bytes(payload, "big")
            elif kind == _RESET or (kind == _HEADERS and flags & 1):
                stream.ended = True


class Stream:
    """`ended` says whether the server wants no more of it."""

    def __init__(self, connection: Connection, number: int, window: int) -> None:
        self._connection = connection
        self.number = number
        self.window = window
        self.ended = False

    async def send(self, data: bytes, patience: float = 1.0) -> int:
        """How much of it was taken, until the server took nothing for a while or the stream ended."""
        return await self._connection.send(self, data, patience)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(text: str) -> bytes:
    """A string of HPACK, as it is."""
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest = len(data) - 127
    assert rest < 128 * 128
    return bytes([127, rest & 127 | 128, rest >> 7]) + data
