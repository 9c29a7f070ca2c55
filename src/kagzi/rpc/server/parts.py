"""How many parts a message has, counted in its bytes before it becomes objects.

An empty message in a repeated field takes two bytes on the wire and a hundred in memory, so that a request of the
largest size could fill gigabytes, and keep everybody waiting while it is read. Fields within fields count as well.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from kagzi.errors import InvalidRequest

MOST_PARTS: Final = 100_000  # a thousand starts with all there is to say of them are a third of it
FEW_BYTES: Final = 2 * MOST_PARTS  # cannot hold more: a part takes two bytes at least
_DEEPEST: Final = 100  # as deep as protobuf reads

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_GROUPS: Final = (3, 4)


class _TooMany(Exception):
    pass


class Parts:
    """Counts the parts of one kind of message."""

    def __init__(self, kind: type[Message]) -> None:
        self._name = kind.DESCRIPTOR.name
        descriptor: Any = kind.DESCRIPTOR
        self._shape = _shape(descriptor, {})

    def check(self, data: bytes) -> None:
        """InvalidRequest if there are too many. What cannot be read at all is left to protobuf, which says so."""
        if len(data) > FEW_BYTES:
            try:
                _count(data, 0, len(data), self._shape, MOST_PARTS, _DEEPEST)
            except _TooMany:
                raise InvalidRequest(
                    f"the {self._name} has more than {MOST_PARTS:,} parts; send fewer items at a time"
                ) from None
            except IndexError:
                pass  # it breaks off


class _Shape:
    """Which fields of a message are messages, and which are lists of numbers."""

    __slots__ = ("messages", "numbers")

    def __init__(self) -> None:
        self.messages: dict[int, _Shape] = {}
        self.numbers: set[int] = set()


def _shape(kind: Descriptor, known: dict[str, _Shape]) -> _Shape:
    shape = known.get(kind.full_name)
    if shape is None:
        shape = known[kind.full_name] = _Shape()
        for field in kind.fields:
            if field.message_type is not None:
                shape.messages[field.number] = _shape(field.message_type, known)
            elif field.is_repeated and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                shape.numbers.add(field.number)
    return shape


def _count(data: bytes, at: int, end: int, shape: _Shape, left: int, deep: int) -> int:
    """Counts down: returns how many parts may follow. Raises _TooMany if there are more than `left`, IndexError if the
    bytes break off."""
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _rest_of_varint(data, at, tag)
        left -= 1
        if left < 0:
            raise _TooMany
        wire = tag & 7
        if wire == _BYTES:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _rest_of_varint(data, at, size)
            if at + size > end:
                raise IndexError
            inner = shape.messages.get(tag >> 3)
            if inner is not None:
                if size and deep:
                    left = _count(data, at, at + size, inner, left, deep - 1)
            elif tag >> 3 in shape.numbers:
                left -= size
                if left < 0:
                    raise _TooMany
            at += size
        elif wire == _VARINT:
            while data[at] > 127:
                at += 1
            at += 1
        elif wire == _FOUR:
            at += 4
        elif wire == _EIGHT:
            at += 8
        elif wire not in _GROUPS:
            raise IndexError
    return left


def _rest_of_varint(data: bytes, at: int, first: int) -> tuple[int, int]:
    number, shift = first & 127, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError
