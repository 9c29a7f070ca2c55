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
from kagzi.http.call import Call, Decode


def read_run(call: Call[Any, Any], run: Run) -> Run:
    if (opened := call.decode) is None:
        return run
    return replace(
        run,
        input=_read(opened, run.input),
        output=None if run.output is None else _read(opened, run.output),
        error=_read_error(opened, run.error),
    )


def read_step(call: Call[Any, Any], step: Step) -> Step:
    if (opened := call.decode) is None:
        return step
    return replace(
        step,
        input=None if step.input is None else _read(opened, step.input),
        output=None if step.output is None else _read(opened, step.output),
        error=_read_error(opened, step.error),
    )


def read_signal(call: Call[Any, Any], signal: Signal) -> Signal:
    return signal if call.decode is None else replace(signal, value=_read(call.decode, signal.value))


def read_value(call: Call[Any, Any], value: RunValue) -> RunValue:
    return value if call.decode is None else replace(value, value=_read(call.decode, value.value))


def _read(opened: Decode, data: bytes) -> bytes:
    try:
        return opened(data)
    except Exception:  # another key, or something that no codec of ours has written: it is shown as it is stored
        return data


def _read_error(opened: Decode, error: bytes | None) -> bytes | None:
    if not error:
        return error
    try:
        return Failure.decode(error).unseal(lambda data: read_plain(opened(data))).encode()
    except Exception:  # as above
        return error
