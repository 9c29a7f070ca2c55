"""Chunks as our own worker sends them: in MessagePack, without a message of its own for every step.

A protobuf message is filled and read field by field, in Python, which is a good part of what a step costs worker and
server. An operation is the same struct on both sides, so it is written and read whole. Other clients say the same
things in `CommitBatchRequest.chunks`.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import DecodeError
from msgspec.msgpack import Decoder, Encoder

from kagzi.api.operations import (
    CancelStep,
    Chunk,
    CompleteRun,
    CompleteStep,
    EndCancelledRun,
    FailRun,
    FailStep,
    HandBackRun,
    ParkRun,
    RetryRun,
    StartStep,
    TakeSignal,
)
from kagzi.errors import InvalidRequest

_Operation: TypeAlias = (
    StartStep
    | CompleteStep
    | FailStep
    | CancelStep
    | TakeSignal
    | ParkRun
    | HandBackRun
    | RetryRun
    | CompleteRun
    | EndCancelledRun
    | FailRun
)

_write = Encoder().encode
_read = Decoder(tuple[str, str, tuple[_Operation, ...]]).decode


def pack_chunk(chunk: Chunk) -> bytes:
    """Without the namespace: a call is about one, and may be made for that one alone."""
    return _write((chunk.run_id, chunk.token, chunk.operations))


def unpack_chunk(data: bytes, namespace: str) -> Chunk:
    try:
        run_id, token, operations = _read(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"a packed chunk cannot be read: {error}") from None
    return Chunk(namespace=namespace, run_id=run_id, token=token, operations=operations)
