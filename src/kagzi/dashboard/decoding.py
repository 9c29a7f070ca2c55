"""Payloads that a codec of the app has written, as whoever has that codec reads them.

A server has none: it shows what is stored. `kagzi dev APP` has the app, and `app.asgi(decode=True)` is one. Nothing
that is decoded here is kept, and what cannot be decoded is shown as it is stored.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from kagzi.core.failure import Failure
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.core.values import read_plain
from kagzi.http.call import Call, PayloadCodec


def written_payload(call: Call[Any, Any], data: bytes) -> bytes:
    """Returns JSON that somebody has written as the codec of the app stores it: one that encrypts reads nothing
    else."""
    return data if call.codec is None else call.codec.encode(data)


def read_run(call: Call[Any, Any], run: Run) -> Run:
    if (codec := call.codec) is None:
        return run
    return replace(
        run,
        input=_read(codec, run.input),
        output=None if run.output is None else _read(codec, run.output),
        error=_read_error(codec, run.error),
    )


def read_step(call: Call[Any, Any], step: Step) -> Step:
    if (codec := call.codec) is None:
        return step
    return replace(
        step,
        input=None if step.input is None else _read(codec, step.input),
        output=None if step.output is None else _read(codec, step.output),
        error=_read_error(codec, step.error),
    )


def read_signal(call: Call[Any, Any], signal: Signal) -> Signal:
    return signal if call.codec is None else replace(signal, value=_read(call.codec, signal.value))


def read_value(call: Call[Any, Any], value: RunValue) -> RunValue:
    return value if call.codec is None else replace(value, value=_read(call.codec, value.value))


def _read(codec: PayloadCodec, data: bytes) -> bytes:
    try:
        return codec.decode(data)
    except Exception:  # another key, or something that no codec of ours has written: it is shown as it is stored
        return data


def _read_error(codec: PayloadCodec, error: bytes | None) -> bytes | None:
    if not error:
        return error
    try:
        return Failure.decode(error).unseal(lambda data: read_plain(codec.decode(data))).encode()
    except Exception:  # as above
        return error
