"""Decodes what an app with a codec has stored, for a command that is given the app."""

from __future__ import annotations

from msgspec.structs import replace

from kagzi.app import Kagzi
from kagzi.cli.application import load_app
from kagzi.core.failure import open_failure
from kagzi.core.lineage import Lineage, PayloadContext, PayloadKind, input_of, lineage_of
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.sdk.payload import Codec


def codec_of(target: str | None) -> Codec | None:
    """Returns the codec of the app that the command line names; None without one."""
    app: Kagzi | None = None if target is None else load_app(target)
    return None if app is None else app.codec


def decoded_run(run: Run, codec: Codec) -> Run:
    """Returns the run with its payloads decoded; CannotDecode if the app has another key."""
    lineage = lineage_of(run)
    return replace(
        run,
        input=_decoded(run.input, codec, input_of(run)) or b"",
        output=_decoded(run.output, codec, lineage.of(PayloadKind.OUTPUT)),
        error=_decoded_error(run.error, codec, lineage.of(PayloadKind.ERROR)),
    )


def decoded_step(step: Step, codec: Codec, lineage: Lineage) -> Step:
    return replace(
        step,
        input=_decoded(step.input, codec, lineage.step_input(step)),
        output=_decoded(step.output, codec, lineage.step_output(step)),
        error=_decoded_error(step.error, codec, lineage.step_error(step)),
    )


def decoded_signal(signal: Signal, codec: Codec, lineage: Lineage) -> Signal:
    return replace(signal, value=codec.decode(signal.value, lineage.of(PayloadKind.SIGNAL, signal.name)))


def decoded_value(value: RunValue, codec: Codec, lineage: Lineage) -> RunValue:
    return replace(value, value=_decoded(value.value, codec, lineage.value(value.name)) or b"")


def _decoded(data: bytes | None, codec: Codec, context: PayloadContext | None) -> bytes | None:
    return data if data is None or context is None else codec.decode(data, context)


def _decoded_error(error: bytes | None, codec: Codec, context: PayloadContext) -> bytes | None:
    return None if not error else open_failure(error, lambda data: codec.decode(data, context)).encode()
