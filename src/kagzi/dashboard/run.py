"""The page of one run: why it stands where it stands, its timeline, and everything that is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from kagzi.api.explanation import explain
from kagzi.api.handling import failure_handlers
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import Instant
from kagzi.core.limits import STEP_ID_BYTES
from kagzi.core.lineage import lineage_of
from kagzi.core.run import Run
from kagzi.core.run_value import OURS
from kagzi.core.wake import awaits_moment
from kagzi.dashboard.decoding import read_run, read_signal, read_step, read_value
from kagzi.dashboard.shell import may, page
from kagzi.dashboard.system import PlainQuery
from kagzi.dashboard.timeline import SCALE, ChildRow, Row, child_rows, entries_of, rows_of, whole_run
from kagzi.errors import NotFound
from kagzi.http.call import Call, Html
from kagzi.http.runs import run_id_of
from kagzi.ports.documents.runs import progress_document

STEPS_SHOWN: Final = 500
_CHILDREN: Final = 100


class RunQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=10_000_000)] = 0  # rows of the timeline that come before
    only: Annotated[str, Meta(pattern="^failed$")] | None = None


class Verb(Struct, frozen=True):
    """A button: something that can be done with a run now."""

    name: str
    label: str
    grave: bool = False


async def show_run(call: Call[RunQuery, None]) -> Html:
    workflows, now = call.engine.workflows, call.host.clock.now()
    run = read_run(call, await workflows.get(call.namespace, await run_id_of(call, call.path["run_id"])))
    # What went in and came out is on the page of each step, which is fetched where a row is opened.
    lineage = lineage_of(run)
    stored = await workflows.steps(call.namespace, run.run_id, payloads=False)
    steps = [read_step(call, step, lineage) for step in stored]
    entries = entries_of(steps)
    failed = [entry for entry in entries if entry.failed]
    wanted = failed if call.query.only == "failed" else entries
    after = call.query.after
    rows = rows_of(run, wanted[after : after + STEPS_SHOWN], now)
    signals = await workflows.signals(call.namespace, run.run_id)
    said = [read_value(call, value, lineage) for value in await workflows.values(call.namespace, run.run_id)]
    return await page(
        call,
        "run.html",
        title=run.workflow_type,
        tab="/runs",
        live=run.run_id if not run.status.finished else None,
        run=run,
        why=await explain(call.engine, run, now, steps=steps, signals=signals),
        handlers=[read_run(call, handler) for handler in await failure_handlers(call.engine, run)],
        verbs=verbs_of(call, run),
        whole=whole_run(run, steps, now),
        rows=rows,
        all_rows=len(wanted),
        failed_rows=len(failed),
        after=after,
        step_page=STEPS_SHOWN,
        only=call.query.only,
        children=await _children(call, run, rows, now),
        scale=SCALE,
        end=run.finished_at or now,
        values=[value for value in said if not value.name.startswith(OURS)],
        progress=progress_document(said),
        signals=[read_signal(call, signal, lineage) for signal in signals],
        decoded=call.codec is not None,
    )


class StepQuery(PlainQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    step: Annotated[str, Meta(min_length=1, max_length=STEP_ID_BYTES)]


async def show_step(call: Call[StepQuery, None]) -> Html:
    """Shows one step with all of its attempts, and what went in and came out."""
    workflows = call.engine.workflows
    run = await workflows.get(call.namespace, await run_id_of(call, call.path["run_id"]))
    steps = await workflows.steps(call.namespace, run.run_id, step_id=call.query.step)
    if not steps:
        raise NotFound(f"run {run.run_id} has no step {call.query.step}")
    attempts = sorted([read_step(call, step, lineage_of(run)) for step in steps], key=lambda step: step.attempt)
    return await page(
        call,
        "step.html",
        title=f"{attempts[-1].name} of {run.workflow_type}",
        tab="/runs",
        run=run,
        step_id=call.query.step,
        attempts=attempts,
        forks=may(call, "POST /runs/{run_id}/fork") and "~" not in call.query.step,
    )


async def _children(call: Call[Any, Any], run: Run, rows: Sequence[Row], now: Instant) -> dict[str, ChildRow]:
    """Returns the newest children of the steps that are shown; for runs without any nothing is asked."""
    if not any(row.attempts and row.attempts[-1].child_run_id for row in rows):
        return {}
    wanted = RunFilter(namespace=call.namespace, parent_run_id=run.run_id)
    found = await call.engine.workflows.list(wanted, page_size=_CHILDREN)
    return child_rows(run, found.items, now)


def verbs_of(call: Call[Any, Any], run: Run) -> list[Verb]:
    """Returns what makes sense now and is not refused to the caller."""
    if run.status.finished:
        verbs = [Verb("retry", "Retry"), Verb("rerun", "Run again")]
    else:
        verbs = [Verb("signal", "Send signal"), Verb("cancel", "Cancel"), Verb("terminate", "Terminate", grave=True)]
        if awaits_moment(run, call.host.clock.now()):
            verbs.insert(0, Verb("wake", "Wake now"))
    verbs.append(Verb("fork", "Fork …"))
    return [verb for verb in verbs if may(call, f"POST /runs/{{run_id}}/{verb.name}")]
