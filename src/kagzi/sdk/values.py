"""Values and progress: what a run says about itself while it lives, for those who look at it.

    kagzi.set_value("stage", "charging")
    kagzi.progress(0.4, "loading")

Both are stored with what is stored next, and nothing waits for that. They are no events: replay does not see them.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import Any, Final

from kagzi.core.limits import check_name, check_payload, check_text
from kagzi.core.lineage import PayloadKind
from kagzi.core.run_value import MOST_VALUES, OURS, PROGRESS, VALUE_BYTES, Progress
from kagzi.errors import InvalidRequest
from kagzi.sdk.ambient import payload_codec
from kagzi.sdk.replay.execution import Execution
from kagzi.sdk.replay.loop import WorkflowLoop, place_of_call
from kagzi.sdk.replay.side_threads import refuse_beside_workflow
from kagzi.sdk.signal_values import value_codec
from kagzi.sdk.worker.bodies import current_step

_MESSAGE_CHARACTERS: Final = 1000


def set_value(name: str, value: Any) -> None:
    """Say something about this run: `kagzi.set_value("stage", "charging")`. `await run.value("stage", str)` reads it,
    also when no worker is up and when the run has ended.

    For workflows. The last value of a name counts; a run has up to 100 names. Nothing waits until it is stored. Outside
    of Kagzi, as in a test that calls the workflow function itself, it does nothing.
    """
    check_value_name(name)
    loop = _get_running_loop()
    if isinstance(loop, WorkflowLoop):
        try:
            data = encode_value(name, value, loop.execution)
        except Exception:
            loop.unawaited.excuse()  # a call that was passed in without `await` is what this error is about
            raise
        _set(loop.execution, name, data)
        return
    refuse_beside_workflow("kagzi.set_value()")
    if current_step.get(None) is not None:
        raise InvalidRequest(
            f"kagzi.set_value({name!r}) was called in a step, and is for workflows (at {place_of_call()}); "
            "a step tells how far it is with kagzi.progress()"
        )
    encode_value(name, value, None)


def progress(fraction: float, message: str = "") -> None:
    """Say how far this run has come, from 0 to 1, and what it is at: `kagzi.progress(0.4, "loading")`.

    For workflows and for steps, `def` and `async def`. May be called as often as you like: about once a second the last
    one is stored, and nothing waits for that. `await run.progress()` reads it.
    """
    said = _checked(fraction, message)
    loop = _get_running_loop()
    if isinstance(loop, WorkflowLoop):
        loop.execution.set_value(PROGRESS, encode_value(PROGRESS, said, loop.execution))
        return
    refuse_beside_workflow("kagzi.progress()")
    step = current_step.get(None)
    if step is None or step.held_by is None or (step.cancelled is not None and step.cancelled.is_set()):
        return  # outside of Kagzi, or on a thread that was given up
    attempt = step.held_by()
    if attempt is not None:
        attempt.hear_progress(said)


def _set(execution: Execution, name: str, value: bytes) -> None:
    names = execution.value_names
    if names is None:
        names = execution.value_names = set()
    if name not in names:
        if len(names) >= MOST_VALUES:
            raise InvalidRequest(
                f"a run has at most {MOST_VALUES} values, and kagzi.set_value({name!r}) would be one more. "
                "Keep what grows in one value, or in tables of your own"
            )
        names.add(name)
    execution.set_value(name, value)


def encode_value(name: str, value: Any, execution: Execution | None) -> bytes:
    """Returns a value as it is stored; NotSerializable if JSON cannot hold it, PayloadTooLarge beyond 64 KiB."""
    codec = None if execution is None else payload_codec(execution)
    context = None if codec is None or execution is None else execution.lineage.of(PayloadKind.VALUE, name)
    data = value_codec(Any, f"value {name!r}", codec).encode_result(value, context)
    return check_payload(data, f"value {name!r}", VALUE_BYTES)


def check_value_name(name: object) -> str:
    checked = check_name(name, "value name")
    if checked.startswith(OURS):
        raise InvalidRequest(f"a value name must not begin with {OURS!r}: such names are Kagzi's own")
    return checked


def _checked(fraction: object, message: object) -> Progress:
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidRequest(f"progress must be a number from 0 to 1, not {fraction!r:.60}")
    if not isinstance(message, str):
        raise InvalidRequest(f"the message of a progress must be text, not {type(message).__name__}")
    if len(message) > _MESSAGE_CHARACTERS:
        raise InvalidRequest(
            f"the message of a progress has {len(message):,} characters; at most {_MESSAGE_CHARACTERS:,} are allowed"
        )
    check_text(message, "the message of a progress")
    return Progress(float(fraction), message)
