"""Today's code against what earlier code has recorded: does each run of a history still come out the same?"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from kagzi.core.lineage import PayloadContext, PayloadKind, lineage_of
from kagzi.core.run import RunStatus
from kagzi.core.worker import WorkflowType
from kagzi.errors import InvalidRequest
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.foreign import place_of
from kagzi.sdk.histories import History, read_history, unpacked
from kagzi.sdk.replay.comparing import ComparedExecution, Difference
from kagzi.sdk.replay.recorded import run_to_replay
from kagzi.sdk.worker.sealed_errors import SealedErrors


class Offers(Protocol):
    """The half of an app that is asked here."""

    def find_workflow(self, name: str, version: str) -> Workflow[Any, Any] | None: ...

    def workflow_types(self) -> tuple[WorkflowType, ...]: ...


class Differs(AssertionError):
    """Today's code does not do what a recorded run has done. `difference` says where it departs first."""

    def __init__(self, history: History, difference: Difference) -> None:
        super().__init__(
            f"run {history.run_id} of {history.workflow} {history.version} comes out differently at {difference}"
        )
        self.difference = difference


class Replayed(Struct, frozen=True, kw_only=True):
    """A history that today's code comes through without doing anything again. `new` are steps and children that it
    did not have then, `gone` those that it does without today."""

    run_id: str
    workflow: str
    version: str
    events: int
    status: RunStatus
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


def replay(history: History | str | bytes | Path, app: Offers, *, strict: bool = False) -> Replayed:
    """Replay a recorded run with the code of this app: `replay(Path("histories/checkout.json"), app)`.

    `history` is what `kagzi runs export` has written: a path, or its text. No step's body starts, and nothing is
    written. Raises `Differs` at the first call that is not as recorded, with its file and line; InvalidRequest if the
    app has no such workflow or version. Steps and children that are new, and recorded ones that are gone, do no harm to
    the run and are told by what this returns; with `strict` they differ, too. If some are new and some are gone, it may
    be one under another name, which would run again: that differs in any case.
    """
    recorded = read(history)
    workflow = _workflow_of(recorded, app)
    codec = workflow.codec
    rows = tuple(recorded.rows())
    run = run_to_replay(
        recorded.run_id,
        recorded.workflow,
        recorded.started_at or 0,
        namespace=recorded.namespace,
        version=recorded.version,
        task_queue=recorded.queue,
        attempts=recorded.attempts,
        origin_run_id=recorded.seed_run_id,
        scheduled_for=recorded.scheduled_for,
        timezone=recorded.timezone,
        incarnation=recorded.incarnation,
        external_id=recorded.id,
        lineage=recorded.lineage,
    )
    lineage = lineage_of(run)
    events = rows if codec is None else SealedErrors(codec, lineage).unsealed(rows)
    execution = ComparedExecution(run, events, ended=recorded.status is RunStatus.COMPLETED)
    failed_input = None if recorded.failed_input is None else unpacked(recorded.failed_input)
    try:
        coroutine = _called(recorded, workflow, execution, failed_input)
        if recorded.started_at is None:
            coroutine.close()
            return _replayed(recorded, execution)
        output = lineage.of(PayloadKind.OUTPUT)
        execution.compare(coroutine, partial(workflow.encode_result, context=output))
        difference = execution.difference or _different_end(recorded, workflow, execution, output)
        if difference is None and strict:
            difference = execution.harmless
    finally:
        execution.evict()
    if difference is not None:
        raise Differs(recorded, difference)
    return _replayed(recorded, execution)


def _called(
    history: History, workflow: Workflow[Any, Any], execution: ComparedExecution, failed_input: bytes | None
) -> Coroutine[Any, Any, Any]:
    try:
        return workflow.begin(unpacked(history.input), execution, failed_input)
    except Exception as error:  # codecs are the user's
        given = unpacked(history.input)[:200].decode(errors="replace")
        present = f"the arguments do not fit: {type(error).__name__}: {error}"
        difference = Difference(0, execution.replayed_events, f"called with {given}", present, place_of(workflow.fn))
        raise Differs(history, difference) from error


def _replayed(history: History, execution: ComparedExecution) -> Replayed:
    return Replayed(
        run_id=history.run_id,
        workflow=history.workflow,
        version=history.version,
        events=0 if history.started_at is None else execution.replayed_events,
        status=history.status,
        new=tuple(execution.new),
        gone=tuple(execution.gone),
    )


def read(history: object) -> History:
    """Reads a history from where it is."""
    if isinstance(history, History):
        return history
    if isinstance(history, Path) or (isinstance(history, str) and not history.lstrip().startswith("{")):
        path = Path(history)
        try:
            return read_history(path.read_bytes())
        except OSError as error:
            raise InvalidRequest(f"the history {path} cannot be read: {error.strerror or error}") from None
    if isinstance(history, bytes | str):
        return read_history(history)
    raise InvalidRequest(f"a history is a path, or what is in the file, not {type(history).__name__}")


def _workflow_of(history: History, app: Offers) -> Workflow[Any, Any]:
    found: Workflow[Any, Any] | None = app.find_workflow(history.workflow, history.version)
    if found is None:
        known = [offered.version or "every" for offered in app.workflow_types() if offered.name == history.workflow]
        there = f"its versions there are {', '.join(known)}" if known else "the app has no workflow of that name"
        raise InvalidRequest(f"the run is of {history.workflow} {history.version}; {there}")
    return found


def _different_end(
    history: History, workflow: Workflow[Any, Any], execution: ComparedExecution, context: PayloadContext
) -> Difference | None:
    """Compares the end of a run that has completed. What failed, or was cut off, may well come out better today."""
    if history.status is not RunStatus.COMPLETED or execution.guessed or execution.lost_track:
        return None
    events, outcome = execution.replayed_events, execution.outcome
    read = workflow.signature
    recorded = unpacked(history.output) if history.output is not None else b"null"
    if outcome is None:
        present, place = execution.awaited()
        return Difference(events + 1, events, "the run COMPLETED", present, place)
    if outcome.output is None:
        return Difference(events + 1, events, "the run COMPLETED", execution.described_end(), None)
    if outcome.output != recorded and read.decode_result(outcome.output, context) != read.decode_result(
        recorded, context
    ):
        shown = f"returns {outcome.output[:200].decode(errors='replace')}"
        return Difference(events + 1, events, f"returned {recorded[:200].decode(errors='replace')}", shown, None)
    return None
