"""Chunks as our own worker sends them: in MessagePack, without a message of its own for every step.

A protobuf message is filled and read field by field, in Python, which is a good part of what a step costs worker and
server. An operation is the same struct on both sides, so it is written and read whole. Other clients say the same
things in `CommitBatchRequest.chunks`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError
from msgspec.msgpack import Decoder, Encoder

from kagzi.api.operations import OPERATIONS, Chunk, Operation
from kagzi.errors import InvalidRequest, VersionMismatch

_write = Encoder().encode
_read = Decoder(tuple[str, str, tuple[Operation, ...]]).decode

_TAGS: Final = frozenset(kind.__struct_config__.tag for kind in OPERATIONS)
_read_any = Decoder(tuple[str, str, tuple[tuple[Any, ...], ...]]).decode


def pack_chunk(chunk: Chunk) -> bytes:
    """Packs a chunk without its namespace: a call is about one namespace, and may be made for that one alone."""
    return _write((chunk.run_id, chunk.token, chunk.operations))


def unpack_chunk(data: bytes, namespace: str) -> Chunk:
    try:
        run_id, token, operations = _read(data)
    except (DecodeError, UnicodeDecodeError) as error:
        if (tag := _unknown_tag(data)) is not None:
            # Not the run's fault: a worker of a newer version has sent it.
            raise VersionMismatch(
                f"this server does not know operation {tag} of a packed chunk; upgrade it before its workers"
            ) from None
        raise InvalidRequest(f"a packed chunk cannot be read: {error}") from None
    return Chunk(namespace=namespace, run_id=run_id, token=token, operations=operations)


def _unknown_tag(data: bytes) -> int | None:
    """Returns the first tag of an operation that is not known here, if that is what is wrong."""
    try:
        _, _, operations = _read_any(data)
    except (DecodeError, UnicodeDecodeError):
        return None
    tags = (operation[0] for operation in operations if operation)
    return next((tag for tag in tags if type(tag) is int and tag not in _TAGS), None)
