"""Decodes what an app with a codec has stored, for a command that is given the app."""

from __future__ import annotations

from msgspec.structs import replace

from kagzi.app import Kagzi
from kagzi.cli.application import load_app
from kagzi.core.failure import Failure
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.signal import Signal
from kagzi.core.step import Step
from kagzi.sdk.payload import Codec, decode


def codec_of(target: str | None) -> Codec | None:
    """Returns the codec of the app that the command line names; None without one."""
    app: Kagzi | None = None if target is None else load_app(target)
    return None if app is None else app.codec


def decoded_run(run: Run, codec: Codec) -> Run:
    """Returns the run with its payloads decoded; CannotDecode if the app has another key."""
    return replace(
        run,
        input=codec.decode(run.input),
        output=None if run.output is None else codec.decode(run.output),
        error=_decoded_error(run.error, codec),
    )


def decoded_step(step: Step, codec: Codec) -> Step:
    return replace(
        step,
        input=None if step.input is None else codec.decode(step.input),
        output=None if step.output is None else codec.decode(step.output),
        error=_decoded_error(step.error, codec),
    )


def decoded_signal(signal: Signal, codec: Codec) -> Signal:
    return replace(signal, value=codec.decode(signal.value))


def decoded_value(value: RunValue, codec: Codec) -> RunValue:
    return replace(value, value=codec.decode(value.value))


def _decoded_error(error: bytes | None, codec: Codec) -> bytes | None:
    return None if not error else Failure.decode(error).unseal(lambda data: decode(codec.decode(data))).encode()
