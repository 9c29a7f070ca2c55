"""The messages between a worker and the processes of its steps. Each travels as a length, then msgpack."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

HEADER_BYTES: Final = 4


class SetUp(Struct, tag="s", array_like=True):
    """The first thing a process hears."""

    path: list[str]  # on which modules are found
    log_level: int


class Run(Struct, tag="r", array_like=True):
    """Call a step. Its function is named, not sent; arguments are bytes, as they are recorded."""

    module: str
    qualname: str
    step: str
    input: bytes
    run_id: str
    step_id: str
    attempt: int
    workflow: str
    namespace: str
    number: int  # that of the call, which its answer has, too
    home: str  # where the run lives


class Cancel(Struct, tag="c", array_like=True):
    """The result is no longer wanted. A body that does not return soon is killed."""


class Returned(Struct, tag="o", array_like=True):
    number: int
    output: bytes


class Raised(Struct, tag="e", array_like=True):
    number: int
    failure: bytes


class Said(Struct, tag="p", array_like=True):
    """`kagzi.progress(...)`."""

    fraction: float
    message: str


class Logged(Struct, tag="l", array_like=True):
    """A line of a log, finished but for where it goes."""

    name: str
    level: int
    text: str
    path: str
    line: int
    function: str
    traceback: str | None


ToProcess = SetUp | Run | Cancel
FromProcess = Returned | Raised | Said | Logged

_encoder = msgspec.msgpack.Encoder()
read_to_process = msgspec.msgpack.Decoder(ToProcess).decode
read_from_process = msgspec.msgpack.Decoder(FromProcess).decode


def framed(message: ToProcess | FromProcess) -> bytes:
    data = _encoder.encode(message)
    return len(data).to_bytes(HEADER_BYTES, "big") + data
