"""One thing done to many runs: to those that were selected at once, to all that match a search by a job."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, assert_never

import msgspec
from msgspec import Meta, Struct

from kagzi.api.jobs import StartJob
from kagzi.api.operations import CancelRun, Fork, RepeatRun, TerminateRun
from kagzi.api.workflows import RunFilter
from kagzi.core.job import MOST_RATE, JobAction, JobOptions, pace_of
from kagzi.core.limits import STEP_ID_BYTES, is_run_id
from kagzi.core.namespace import check_same_namespace
from kagzi.core.run import Run
from kagzi.core.wake import not_woken
from kagzi.dashboard.runs import OFFERED, ROWS, RunsQuery, filter_of
from kagzi.dashboard.shell import page, path_to
from kagzi.dashboard.system import PlainQuery
from kagzi.errors import KagziError, NotFound
from kagzi.http.call import Call, Html, Redirect
from kagzi.http.fields import Name
from kagzi.http.problems import BadField, naming
from kagzi.ports.disclosure import message_to_caller

_SEARCH_CHARACTERS: Final = 4_000
_REASON: Final = "ended with others, from the dashboard"


class Deed(Struct, frozen=True, kw_only=True):
    """An action as pages speak of it. `left` says which runs it leaves as they are."""

    action: JobAction
    button: str
    consequence: str
    left: str
    done: str
    grave: bool = False


_ENDED: Final = "Runs that have ended are left as they are."
_LIVE: Final = (
    "Runs that have not ended are left as they are; those that have completed are not, so look at the status."
)
DEEDS: Final = {
    deed.action: deed
    for deed in (
        Deed(
            action=JobAction.CANCEL,
            button="Cancel",
            consequence="Each is told to end: what its workflow awaits raises CancelledError, and it may clean up for "
            "30 seconds. Then it ends as CANCELLED.",
            left=_ENDED,
            done="was asked to end",
        ),
        Deed(
            action=JobAction.TERMINATE,
            button="Terminate",
            consequence="Each ends as CANCELLED at once. No workflow is asked or can clean up, so what they have begun "
            "stays half done.",
            left=_ENDED,
            done="was ended",
            grave=True,
        ),
        Deed(
            action=JobAction.WAKE,
            button="Wake",
            consequence="Each goes on at once as if the moment it waits for had come: sleeps end, timeouts run out, "
            "and what waits for another attempt is tried again.",
            left="Runs that do not wait for a moment are left as they are.",
            done="goes on",
        ),
        Deed(
            action=JobAction.RETRY,
            button="Retry",
            consequence="For each a new run goes on where it failed: steps that completed are not run again. It has "
            "the id of the old run from then on, which stays as it is.",
            left=_LIVE,
            done="goes on",
        ),
        Deed(
            action=JobAction.RERUN,
            button="Run again",
            consequence="For each a new run begins from the first step with the same input, and every step is run "
            "again. It has the id of the old run from then on, which stays as it is.",
            left=_LIVE,
            done="begins again",
        ),
        Deed(
            action=JobAction.FORK,
            button="Fork",
            consequence="For each a new run with the same input goes on from a step: what was recorded before the end "
            "of that is kept, and it and all after it is run again. The old run stays as it is and keeps its id.",
            left="Runs that have not ended, or have no such step, are left as they are; those that have completed are "
            "not, so look at the status.",
            done="goes on in a fork",
        ),
        Deed(
            action=JobAction.MOVE,
            button="Move",
            consequence="Each that waits or sleeps goes on in the other version from its next claim on.",
            left="Runs that a worker holds are left as they are.",
            done="has the other version",
        ),
        Deed(
            action=JobAction.DELETE,
            button="Delete",
            consequence="Each is deleted with its steps, payloads and signals. Nothing brings them back.",
            left="Runs that have not ended are left as they are.",
            done="is deleted",
            grave=True,
        ),
    )
}


class BulkQuery(RunsQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Beside the filters of the list: what to do, to the `run`s that are selected or to all that the filters match."""

    action: JobAction
    of: Annotated[str, Meta(pattern="^(selection|search)$")] = "selection"
    run: Annotated[tuple[Name, ...], Meta(max_length=ROWS)] = ()


async def ask_bulk(call: Call[BulkQuery, None]) -> Html:
    deed = _offered(call.query.action)
    if call.query.of == "search":
        return await _ask_job(call, deed)
    return await _ask_selection(call, deed)


def _offered(action: JobAction) -> Deed:
    if action not in OFFERED:
        raise BadField("action", f"this page does not {action} runs; the page of versions does")
    return DEEDS[action]


async def _ask_selection(call: Call[BulkQuery, None], deed: Deed) -> Html:
    if not call.query.run:
        raise BadField("run", "no run is selected: tick the runs that are meant, then choose what to do with them")
    runs = await _selected(call, call.query.run)
    # Those that repeat them: a form that is sent twice starts no more.
    fresh = [call.host.ids.run_id() for _ in runs]
    return await _ask(call, deed, runs=runs, matched=len(runs), fresh=fresh)


async def _ask_job(call: Call[BulkQuery, None], deed: Deed) -> Html:
    filter = filter_of(call, call.host.clock.now())
    # A repeat of this form finds the job that it made before.
    job_id = call.host.ids.run_id()
    whole = filter == RunFilter(namespace=call.namespace)
    asked = StartJob(
        namespace=call.namespace, job_id=job_id, action=deed.action, filter=filter, everything=whole, children=False
    )
    found = await call.engine.jobs.preview(asked)
    return await _ask(
        call,
        deed,
        runs=found.runs,
        matched=found.matched,
        at_least=found.at_least,
        children=found.children,
        search=msgspec.json.encode(filter).decode(),
        pace=pace_of(deed.action, None),
        job_id=job_id,
        whole=whole,
    )


async def _ask(call: Call[BulkQuery, None], deed: Deed, *, runs: tuple[Run, ...], matched: int, **more: Any) -> Html:
    context = {"at_least": False, "children": 0, "search": None, "pace": 0, "job_id": None, "whole": False}
    filters = {name: getattr(call.query, name) for name in ("status", "workflow", "queue", "since", "tag", "error")}
    return await page(
        call,
        "bulk.html",
        title=f"{deed.button}: {matched:,} runs",
        tab="/runs",
        deed=deed,
        runs=runs,
        matched=matched,
        back=filters | {"id_prefix": call.query.id_prefix},
        **context | {"fresh": ()} | more,
    )


async def _selected(call: Call[Any, Any], run_ids: tuple[str, ...]) -> tuple[Run, ...]:
    async def find(run_id: str) -> Run:
        if not is_run_id(run_id):
            raise NotFound(f"there is no run {run_id}")
        return await call.engine.workflows.get(call.namespace, run_id.lower())

    return tuple(await asyncio.gather(*[find(run_id) for run_id in dict.fromkeys(run_ids)]))


class BulkForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`fresh` are ids for runs that repeat those that were selected. `search` is a filter as the page before has
    written it down, `confirm` the namespace if it is meant whole."""

    action: JobAction
    run: Annotated[tuple[Name, ...], Meta(max_length=ROWS)] = ()
    fresh: Annotated[tuple[Name, ...], Meta(max_length=ROWS)] = ()
    search: Annotated[str, Meta(max_length=_SEARCH_CHARACTERS)] | None = None
    job_id: Name | None = None
    rate: Annotated[int, Meta(ge=1, le=MOST_RATE)] | None = None
    children: bool = False
    from_step: Annotated[str, Meta(max_length=STEP_ID_BYTES)] | None = None
    version: Name | None = None
    confirm: str | None = None


class Outcome(Struct, frozen=True):
    """What became of a run that was selected; `follower` is the run that repeats it."""

    run: Run
    said: str
    well: bool
    follower: str | None = None


async def act_on_many(call: Call[PlainQuery, BulkForm]) -> Html | Redirect:
    body, deed = call.body, _offered(call.body.action)
    if body.search is not None:
        return await _start_job(call, body.search)
    if not body.run:
        raise BadField("run", "no run is selected")
    call.targets = tuple([f"run {run_id}" for run_id in body.run])
    runs = await _selected(call, body.run)
    if len(runs) != len(body.fresh):
        raise BadField("fresh", "this form is not complete; load its page again")
    outcomes = await asyncio.gather(*[_apply(call, deed, *each) for each in zip(runs, body.fresh, strict=True)])
    return await page(call, "bulk_done.html", title=deed.button, tab="/runs", deed=deed, outcomes=outcomes)


async def _start_job(call: Call[Any, BulkForm], search: str) -> Redirect:
    body = call.body
    try:
        filter = msgspec.json.decode(search, type=RunFilter)
    except (msgspec.DecodeError, RecursionError):
        raise BadField("search", "search is not a filter; load the page of the form again") from None
    with naming("search"):
        check_same_namespace(filter.namespace, call.namespace)
    whole = filter == RunFilter(namespace=call.namespace)
    if whole and body.confirm != call.namespace:
        raise BadField("confirm", f"this is about every run: write {call.namespace} into the field to confirm it")
    asked = StartJob(
        namespace=call.namespace,
        job_id=body.job_id or call.host.ids.run_id(),
        action=body.action,
        filter=filter,
        everything=whole,
        rate=body.rate,
        children=body.children,
        options=JobOptions(from_step=body.from_step or None, version=body.version),
        created_by="" if call.caller is None else call.caller.actor,
    )
    call.targets = (f"job {asked.job_id}",)
    with naming("search"):
        job = await call.engine.jobs.start(asked)
    return Redirect(path_to(call, f"/jobs/{job.job_id}", done="job"))


async def _apply(call: Call[Any, BulkForm], deed: Deed, run: Run, fresh: str) -> Outcome:
    """Changes the runs one by one; one that cannot be changed does not keep the others from it."""
    workflows, namespace = call.engine.workflows, call.namespace
    follower: str | None = None
    effective = True
    try:
        match deed.action:
            case JobAction.CANCEL:
                request = CancelRun(namespace=namespace, run_id=run.run_id)
                effective = (await workflows.cancel(request)).effective
            case JobAction.TERMINATE:
                end = TerminateRun(
                    namespace=namespace, run_id=run.run_id, reason="ended with others from the dashboard"
                )
                effective = (await workflows.terminate(end)).effective
            case JobAction.WAKE:
                woken = await workflows.wake(namespace, run.run_id)
                if not woken.woken:
                    return Outcome(run, not_woken(run.run_id, woken.status), False)
            case JobAction.DELETE:
                await call.engine.jobs.delete_run(namespace, run.run_id)
            case JobAction.RETRY | JobAction.RERUN as action:
                keep = action is JobAction.RETRY
                repeat = RepeatRun(namespace=namespace, run_id=fresh, of_run_id=run.run_id, keep_steps=keep)
                follower = (await workflows.repeat(repeat)).run_id
            case JobAction.FORK:
                if not run.status.finished:
                    return Outcome(run, f"is {run.status.value.lower()}, and would go on beside its fork", False)
                fork = Fork(from_step=call.body.from_step or None, version=call.body.version)
                repeat = RepeatRun(
                    namespace=namespace,
                    run_id=fresh,
                    of_run_id=run.run_id,
                    keep_steps=fork.from_step is not None,
                    keep_id=False,
                    fork=fork,
                )
                follower = (await workflows.repeat(repeat)).run_id
            case JobAction.MOVE:
                raise AssertionError("is not offered")
            case action:
                assert_never(action)
    except KagziError as error:
        return Outcome(run, message_to_caller(error), False)
    return Outcome(run, deed.done if effective else "had ended before", effective, follower)
