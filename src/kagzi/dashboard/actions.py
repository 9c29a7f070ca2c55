"""Changing a run: a page that says what will happen, and the form on it that makes it happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from kagzi.api.operations import CancelAnswer, CancelRun, Fork, RepeatRun, SendSignal, Started, TerminateRun
from kagzi.core.duration import parse_duration
from kagzi.core.laid_out import check_json
from kagzi.core.limits import REASON_CHARACTERS, STEP_ID_BYTES
from kagzi.core.lineage import PayloadKind, lineage_of
from kagzi.core.run import CANCEL_GRACE, Run
from kagzi.core.signal import MADE_KEY
from kagzi.dashboard.asking import AskQuery, EmptyForm, Field, Question, Subject
from kagzi.dashboard.decoding import made_before, read_run, written_payload
from kagzi.dashboard.inputs import (
    InputForm,
    WrongInput,
    fields_of,
    parameters_of,
    read_input,
    values_of,
    written_values,
)
from kagzi.dashboard.shell import path_to
from kagzi.dashboard.text import editable, uneditable
from kagzi.errors import Conflict
from kagzi.http.apart import apart
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.problems import BadField, naming
from kagzi.http.runs import run_id_of
from kagzi.ports.parameters import Parameters

_LENGTH_CHARACTERS: Final = 100


class RunQuestion(Question, frozen=True, kw_only=True):
    """A question about a run."""

    async def subject(self, call: Call[Any, Any]) -> Subject:
        run = await _run(call)
        about = f"{run.workflow_type} {run.external_id or run.run_id}"
        return Subject(about=about, path=f"/runs/{run.run_id}", tab="/runs")


class Action(RunQuestion, frozen=True, kw_only=True):
    """Something that is done to a run as it is agreed to."""

    do: Callable[[Call[Any, Any], Run], Awaitable[Redirect]]

    async def act(self, call: Call[Any, Any]) -> Redirect:
        return await self.do(call, await _run(call))


async def _run(call: Call[Any, Any]) -> Run:
    return await call.engine.workflows.get(call.namespace, await run_id_of(call, call.path["run_id"]))


def _to(call: Call[Any, Any], run_id: str, done: str) -> Redirect:
    return Redirect(path_to(call, f"/runs/{run_id}", done=done))


class CancelForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    grace: Annotated[str, Meta(max_length=_LENGTH_CHARACTERS)] | None = None


async def _cancel(call: Call[Any, CancelForm], run: Run) -> Redirect:
    with naming("grace"):
        grace = CANCEL_GRACE if call.body.grace is None else parse_duration(call.body.grace, "grace")
    request = CancelRun(namespace=call.namespace, run_id=run.run_id, grace=grace)
    return _ended(call, await call.engine.workflows.cancel(request), "cancel")


class TerminateForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""


async def _terminate(call: Call[Any, TerminateForm], run: Run) -> Redirect:
    request = TerminateRun(namespace=call.namespace, run_id=run.run_id, reason=call.body.reason)
    return _ended(call, await call.engine.workflows.terminate(request), "terminate")


async def _wake(call: Call[Any, EmptyForm], run: Run) -> Redirect:
    answer = await call.engine.workflows.wake(call.namespace, run.run_id)
    return _to(call, run.run_id, "wake" if answer.woken else "awake")


def _ended(call: Call[Any, Any], answer: CancelAnswer, verb: str) -> Redirect:
    return _to(call, answer.run_id, verb if answer.effective else "over")


async def _repeat(call: Call[Any, EmptyForm], run: Run, verb: str) -> Redirect:
    request = RepeatRun(
        namespace=call.namespace,
        run_id=call.host.ids.run_id(),
        of_run_id=run.run_id,
        keep_steps=verb == "retry",
    )
    started: Started = await call.engine.workflows.repeat(request)
    return _to(call, started.run_id, "found" if started.already_exists else verb)


async def _retry(call: Call[Any, EmptyForm], run: Run) -> Redirect:
    return await _repeat(call, run, "retry")


async def _rerun(call: Call[Any, EmptyForm], run: Run) -> Redirect:
    return await _repeat(call, run, "rerun")


class ForkQuery(AskQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    step: Annotated[str, Meta(max_length=STEP_ID_BYTES)] | None = None


class ForkForm(InputForm, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a fork is to be. Fields left empty mean: from the first step, with the same input, in the same version."""

    from_step: Annotated[str, Meta(max_length=STEP_ID_BYTES)] | None = None
    version: Name | None = None
    fresh: Name | None = None


class Forking(RunQuestion, frozen=True, kw_only=True):
    async def fields_for(self, call: Call[Any, Any]) -> tuple[Field, ...]:
        run = read_run(call, await _run(call))
        parameters = await parameters_of(call, run.workflow_type, run.version)
        values = None if parameters is None else await values_of(parameters, run.input)
        if parameters is None or values is None:
            fields = await _json_field(run, None, "")
        else:
            fields = fields_of(parameters, values)
        return self._around(call.query.step or "", fields, run.version, call.host.ids.run_id())

    def _around(self, step: str, fields: tuple[Field, ...], version: str, fresh: str) -> tuple[Field, ...]:
        return (
            Field(
                name="from_step",
                label="From step",
                value=step,
                hint="its id or name: what was recorded before its end is kept; without one nothing is kept",
            ),
            *fields,
            Field(name="version", label="Version", value=version, hint="of the workflow's code"),
            # A form that is sent twice starts one run.
            Field(name="fresh", label="", value=fresh, hidden=True),
        )

    async def act(self, call: Call[Any, ForkForm]) -> Html | Redirect:
        body, run = call.body, read_run(call, await _run(call))
        parameters = await parameters_of(call, run.workflow_type, run.version) if body.fields else None
        try:
            written = await read_input(parameters, body)
        except WrongInput as error:
            if parameters is None:
                fields = await _json_field(run, body.input or "", error.wrong.get("input", ""))
            else:
                fields = fields_of(parameters, written_values(body), error.wrong)
            fields = self._around(
                body.from_step or "", fields, body.version or run.version, body.fresh or call.host.ids.run_id()
            )
            return await self.show(call, fields, status=400, trouble=error.wrong.get("", ""))
        if written is not None and not await apart(len(written), _same_input, parameters, written, run.input):
            return await _fork(call, run, written)
        return await _fork(call, run, None)


async def _json_field(run: Run, written: str | None, error: str) -> tuple[Field, ...]:
    hint, stored = "JSON; changed input is read by steps that run anew", await editable(run.input)
    if stored is None:
        hint = f"{uneditable(run.input)}; left empty it stays as it is, else JSON"
    value = (stored or "") if written is None else written
    return (Field(name="input", label="Input", value=value, hint=hint, error=error, long=True),)


def _same_input(parameters: Parameters | None, written: bytes, before: bytes) -> bool:
    if parameters is not None and (spread := parameters.spread(before)) is not None:
        before = parameters.assemble(spread)
    return _compact(written) == _compact(before)


def _compact(data: bytes) -> bytes | None:
    """Returns JSON without blanks; None for what is none."""
    try:
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def _fork(call: Call[Any, ForkForm], run: Run, changed: bytes | None) -> Redirect:
    body, input = call.body, changed
    run_id = body.fresh or call.host.ids.run_id()
    if changed is not None:
        input = written_payload(call, changed, lineage_of(run).of(PayloadKind.INPUT))
    request = RepeatRun(
        namespace=call.namespace,
        run_id=run_id,
        of_run_id=run.run_id,
        keep_steps=body.from_step is not None,
        keep_id=False,
        fork=Fork(
            from_step=body.from_step,
            input=input,
            version=None if body.version == run.version else body.version,
        ),
    )
    with naming("from_step or version"):
        try:
            await call.engine.workflows.repeat(request)
        except Conflict:
            if changed is None or not await made_before(call, run_id, changed):
                raise
    return _to(call, run_id, "fork")


class SignalForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    value: str = "null"


async def _signal(call: Call[Any, SignalForm], run: Run) -> Redirect:
    context = lineage_of(run).of(PayloadKind.SIGNAL, call.body.name)
    value = written_payload(call, await read_json_field(call.body.value, "value"), context)
    key = MADE_KEY + call.host.ids.token()
    await call.engine.workflows.signal(
        SendSignal(namespace=call.namespace, run_id=run.run_id, name=call.body.name, value=value, key=key)
    )
    return _to(call, run.run_id, "signal")


async def read_json_field(written: str, field: str) -> bytes:
    """Reads what was written into a field as JSON."""
    data = written.encode()
    try:
        await apart(len(data), check_json, data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadField(field, f'{field} is not JSON: {error}. Text needs quotes, as in "yes"') from None
    except RecursionError:
        raise BadField(field, f"{field} is nested too deeply") from None
    return data


CANCEL: Final = Action(
    verb="cancel",
    button="Cancel run",
    consequence="Its workflow is told to end: what it awaits raises CancelledError, and it may clean up for as long as "
    "the grace time lasts. Then it ends as CANCELLED. Steps that have completed stay as they are.",
    form=CancelForm,
    do=_cancel,
    fields=(Field(name="grace", label="Grace time", value="30s", hint="how long it may clean up, such as 30s or 5m"),),
)
TERMINATE: Final = Action(
    verb="terminate",
    button="Terminate run",
    consequence="It ends as CANCELLED at once. Its workflow is not asked and cannot clean up, so what it has begun "
    "stays half done. Cancel it instead unless it does not react.",
    form=TerminateForm,
    do=_terminate,
    fields=(Field(name="reason", label="Reason", hint="kept with the run, for those who look at it later"),),
    grave=True,
)
WAKE: Final = Action(
    verb="wake",
    button="Wake run",
    consequence="It goes on now instead of at the moment for which it is parked: a sleep ends, a timeout runs out, a "
    "step or the run is tried again at once. Its history keeps when that was, and this cannot be taken back.",
    form=EmptyForm,
    do=_wake,
)
RETRY: Final = Action(
    verb="retry",
    button="Retry run",
    consequence="A new run goes on where this one failed: steps that completed are not run again, the one that failed "
    "and what follows are. It has the id of this run from then on; this run stays as it is.",
    form=EmptyForm,
    do=_retry,
)
RERUN: Final = Action(
    verb="rerun",
    button="Run again",
    consequence="A new run begins from the first step with the same input, and every step is run again. It has the id "
    "of this run from then on; this run stays as it is.",
    form=EmptyForm,
    do=_rerun,
)
FORK: Final = Forking(
    verb="fork",
    button="Fork run",
    consequence="A new run begins with what this one has recorded up to the step, and goes on from there; without a "
    "step it begins from the first one. It may have other input or another version. This run stays as it is, with "
    "its id.",
    form=ForkForm,
)
SIGNAL: Final = Action(
    verb="signal",
    button="Send signal",
    consequence="The signal is kept with the run until its workflow takes it, in the order of arrival.",
    form=SignalForm,
    do=_signal,
    fields=(
        Field(name="name", label="Name", hint="what the workflow waits for", required=True),
        Field(name="value", label="Value", value="true", hint="JSON", long=True),
    ),
)
