"""Requests nobody should send, made from the compiled contract: one bad thing at a time in a request that is good.

A request that is bad all over is refused for the first thing that is looked at. So each field of a good request, at any
depth, is tried with every value its type may hold and no field should.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

UUID: Final = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"
TEXTS: Final = [
    "",
    "default",
    "tenant",
    UUID,
    UUID.upper(),
    f"{UUID}.{UUID}",
    f"{UUID}.1..a",
    f"{UUID}.99999999999..a",
    f"{UUID}.1.!!!.a",
    "\0",
    "a\0b",
    "'; DROP TABLE workflow_runs; --",
    '" OR 1=1 --',
    "\u202eevil\u2066",  # turns the direction of writing
    "ключ",
    "🙂" * 100,
    "n" * 256,
    "n" * 1_000_000,
    "../../etc/passwd",
    "%s%n{0}${x}",
    "-1",
    " ",
    "line\nbreak\r\x1b[31m",
]
NESTED: Final = b"[" * 20_000
BYTES: Final = [
    b"",
    b"null",
    b"\xff\xfe\x00",
    NESTED,
    b"{" * 5000,
    b'{"attempts": 1e400}',
    b'{"type": 5}',
    b"\x00kagzi.v1.Payload\x00\xff",
]
LARGE: Final = b"x" * 3_000_000
INT32: Final = [0, 1, -1, 101, 65536, 2**31 - 1, -(2**31)]
INT64: Final = [0, 1, -1, 2**53, 253_402_300_800_000_000, 2**63 - 1, -(2**63)]
DOUBLES: Final = [0.0, -1.0, 1e308, float("inf"), float("-inf"), float("nan")]
VALUES: Final[dict[int, list[Any]]] = {
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BYTES: [*BYTES, LARGE],
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_DOUBLE: DOUBLES,
    FieldDescriptor.TYPE_BOOL: [True],
    FieldDescriptor.TYPE_ENUM: [0, 1, 3, 50, 99, -1],
}
MANY: Final = 1001
DEPTH: Final = 4


Way = Callable[[Message], object]


def ways(kind: type[Message]) -> list[Way]:
    """To spoil a good request of this kind: one field at a time."""
    return list(_ways(kind(), ()))


def spoiled(good: Message, way: Way) -> Message:
    message = type(good)()
    message.CopyFrom(good)
    way(message)
    return message


def broken(good: bytes, chance: random.Random) -> Iterator[bytes]:
    """Bytes that are hardly a message any more."""
    yield from (b"\xff" * 20, b"\x0a\x7f", b"\x0b" * 200, chance.randbytes(60))
    # Text that is not UTF-8 in the first fields: a lone surrogate, an overlong NUL, a byte alone.
    for number in (1, 2, 3):
        for text in (b"\xed\xa0\x80", b"\xc0\x80", b"\xff"):
            yield good + bytes([number << 3 | 2, len(text)]) + text
    # A message in a message in a message.
    nested = b""
    for _ in range(150):
        nested = b"\x0a" + _varint(len(nested)) + nested
    yield nested
    yield b"\x2a" + _varint(len(nested)) + nested
    if good:
        yield good[: chance.randrange(len(good))]
        place = chance.randrange(len(good))
        yield good[:place] + bytes([good[place] ^ 1 << chance.randrange(8)]) + good[place + 1 :]


def hostile(message: Message, chance: random.Random, depth: int = 0) -> None:
    """Everything bad at once."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.3:
            continue
        if _is_map(field):
            _set_map(message, field, chance.choice(TEXTS[:-6]))
        elif field.message_type is not None:
            if depth < DEPTH:
                target = getattr(message, field.name)
                parts = [target.add() for _ in range(chance.randrange(3))] if field.is_repeated else [target]
                for part in parts:
                    part.SetInParent()
                    hostile(part, chance, depth + 1)
        else:
            values = [value for value in VALUES[field.type] if value is not LARGE]
            if field.is_repeated:
                getattr(message, field.name).extend(chance.choice(values) for _ in range(chance.randrange(3)))
            else:
                setattr(message, field.name, chance.choice(values))


def _ways(message: Message, path: tuple[str, ...]) -> Iterator[Way]:
    for field in message.DESCRIPTOR.fields:
        here = (*path, field.name)
        if _is_map(field):
            for text in TEXTS:
                yield lambda root, field=field, text=text, path=path: _set_map(_at(root, path), field, text)
            yield lambda root, field=field, path=path: [
                _set_map(_at(root, path), field, f"key {number}") for number in range(MANY)
            ]
        elif field.message_type is not None:
            if field.is_repeated:
                yield lambda root, path=path, name=field.name: [
                    getattr(_at(root, path), name).add() for _ in range(MANY)
                ]
                if len(path) < DEPTH:
                    yield from _ways(_empty(field), (*here, "*"))
            else:
                yield lambda root, path=path, name=field.name: getattr(_at(root, path), name).Clear()
                yield lambda root, path=path, name=field.name: getattr(_at(root, path), name).SetInParent()
                if len(path) < DEPTH:
                    yield from _ways(_empty(field), here)
        else:
            for value in VALUES[field.type]:
                yield lambda root, path=path, field=field, value=value: _set(_at(root, path), field, value)
            if field.is_repeated:
                few = VALUES[field.type][1]
                yield lambda root, path=path, field=field, few=few: _set(_at(root, path), field, few, MANY)


def _empty(field: FieldDescriptor) -> Message:
    assert field.message_type is not None
    return message_factory.GetMessageClass(field.message_type)()


def _at(root: Message, path: tuple[str, ...]) -> Any:
    """The message that lies there, made if need be; `*` is the first of several."""
    found: Any = root
    for name in path:
        if name == "*":
            found = found[0] if found else found.add()
        else:
            found = getattr(found, name)
            if isinstance(found, Message):
                found.SetInParent()
    return found


def _set(message: Any, field: FieldDescriptor, value: Any, times: int = 1) -> None:
    if field.is_repeated:
        values = getattr(message, field.name)
        del values[:]
        values.extend([value] * times)
    else:
        setattr(message, field.name, value)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _set_map(message: Any, field: FieldDescriptor, text: str) -> None:
    assert field.message_type is not None
    value = field.message_type.fields_by_name["value"]
    getattr(message, field.name)[text] = text if value.type == FieldDescriptor.TYPE_STRING else 2**63 - 1


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])
