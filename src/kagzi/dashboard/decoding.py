"""Payloads that a codec of the app has written, as whoever has that codec reads them.

A server has none: it shows what is stored. `kagzi dev APP` has the app, and `app.asgi(decode=True)` is one. Nothing
that is decoded here is kept, and what cannot be decoded is shown as it is stored.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from kagzi.core.canonical import same_json
from kagzi.core.failure import Failure, open_failure
from kagzi.core.lineage import Lineage, PayloadContext, PayloadKind, input_of, lineage_of, schedule_input
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.schedule import Schedule
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.errors import CannotDecode, NotFound
from kagzi.http.call import Call, PayloadCodec


def written_payload(call: Call[Any, Any], data: bytes, context: PayloadContext) -> bytes:
    """Returns JSON that somebody has written as the codec of the app stores it: one that encrypts reads nothing
    else."""
    return data if call.codec is None else call.codec.encode(data, context)


def read_run(call: Call[Any, Any], run: Run) -> Run:
    if (codec := call.codec) is None:
        return run
    lineage = lineage_of(run)
    return replace(
        run,
        input=_read(codec, run.input, input_of(run)) or b"",
        output=_read(codec, run.output, lineage.of(PayloadKind.OUTPUT)),
        error=_read_error(codec, run.error, lineage.of(PayloadKind.ERROR)),
    )


def read_step(call: Call[Any, Any], step: Step, lineage: Lineage) -> Step:
    if (codec := call.codec) is None:
        return step
    return replace(
        step,
        input=_read(codec, step.input, lineage.step_input(step)),
        output=_read(codec, step.output, lineage.step_output(step)),
        error=_read_error(codec, step.error, lineage.step_error(step)),
    )


def read_signal(call: Call[Any, Any], signal: Signal, lineage: Lineage) -> Signal:
    if (codec := call.codec) is None:
        return signal
    return replace(signal, value=_read(codec, signal.value, lineage.of(PayloadKind.SIGNAL, signal.name)))


def read_value(call: Call[Any, Any], value: RunValue, lineage: Lineage) -> RunValue:
    if (codec := call.codec) is None:
        return value
    return replace(value, value=_read(codec, value.value, lineage.value(value.name)))


def read_schedule(call: Call[Any, Any], schedule: Schedule) -> Schedule:
    if (codec := call.codec) is None:
        return schedule
    return replace(schedule, input=_read(codec, schedule.input, schedule_arguments(schedule)))


async def made_before(call: Call[Any, Any], run_id: str, written: bytes) -> bool:
    """Returns whether this run is what a form has made that came twice: a codec gives other bytes each time, by which
    the engine cannot tell."""
    if call.codec is None:
        return False
    try:
        run = read_run(call, await call.engine.workflows.get(call.namespace, run_id))
    except NotFound:
        return False
    return same_json(run.input, written)


def schedule_arguments(schedule: Schedule) -> PayloadContext:
    return schedule_input(schedule.namespace, schedule.name or schedule.schedule_id)


def _read(codec: PayloadCodec, data: Any, context: PayloadContext | None) -> Any:
    if data is None or context is None:
        return data
    try:
        return codec.decode(data, context)
    except Exception:  # another key, or something that no codec of ours has written: it is shown as it is stored
        return data


def _read_error(codec: PayloadCodec, error: bytes | None, context: PayloadContext) -> bytes | None:
    if not error:
        return error
    try:
        return open_failure(error, lambda data: codec.decode(data, context)).encode()
    except CannotDecode as problem:
        return error if Failure.decode(error).sealed else Failure.of(CannotDecode, str(problem)).encode()
