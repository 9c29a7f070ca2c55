"""Why a run is not moving, in one sentence.

Commands, the HTTP API and the dashboard show the same sentence. It is made from what was read a moment ago, so it says
what was true then; nothing decides by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kagzi.core.alike import alike
from kagzi.core.duration import format_span
from kagzi.core.failure import Failure
from kagzi.core.flow import MOST_BEFORE, FlowLimit, SlotWait
from kagzi.core.instant import SECOND, Instant, Span, to_datetime
from kagzi.core.run import CLAIMABLE, Run, RunStatus
from kagzi.core.signal import awaits_signal
from kagzi.core.step import Step, StepKind, StepStatus
from kagzi.core.wake import NEWS_ALONE, THEN_DEFAULT
from kagzi.core.worker import Worker, WorkerStatus

SUSPECT_CRASHES: Final = 2  # lost workers in a row from which on a sentence speaks of them
_MOST_NAMED: Final = 3
_ERROR_CHARACTERS: Final = 200


def why(
    run: Run,
    *,
    now: Instant,
    steps: Sequence[Step] | None = (),
    holder: Worker | None = None,
    serving: Sequence[Worker] = (),
    others: Sequence[Worker] = (),
    limits: Sequence[FlowLimit] = (),
    slot: SlotWait | None = None,
    untaken: Sequence[str] = (),
) -> str | None:
    """Returns why the run stands where it stands; None if it has finished.

    `steps` None: they were not read, so the sentence cannot tell a sleep from a wait for another attempt of a step.
    `holder` is the worker of a RUNNING run. `serving` are the online workers of its queue and `others` some of the
    namespace's other queues; both matter only for a run that waits to be claimed, and so do the `limits` of its
    namespace and the limit that it waits for, whose `slot` it wants. `untaken` names signals that it was sent and has
    not taken.
    """
    if run.status.finished:
        return None
    if run.status in (RunStatus.SCHEDULED, RunStatus.PAUSED):
        return "This is the template of a schedule: it starts runs and is none itself."
    if run.status is RunStatus.RUNNING:
        return _held(run, steps or (), holder, now)
    if run.cancel_deadline is not None:
        if slot is not None and _paused(run, limits, now) is None and _nobody(run, serving, others) is None:
            until = _at(run.cancel_deadline, now)
            return f"Cancelling. {_slot(slot, now)} If it has none until {until}, it ends as it is."
        nobody = _paused(run, limits, now) or _nobody(run, serving, others)
        return (
            f"Cancelling: a worker has to take it, so that it can clean up until {_at(run.cancel_deadline, now)}"
            f"{f', but {nobody}' if nobody else ''}. Then it ends as it is."
        )
    if run.available_at is not None and run.available_at > now:
        return _waiting(run, steps, run.available_at, now, untaken)
    if (paused := _paused(run, limits, now)) is not None:
        return f"Waiting: {paused}.{_crashes(run)}"
    if slot is not None and _nobody(run, serving, others) is None:
        return f"{_slot(slot, now)}{_crashes(run)}"
    return _due(run, serving, others, now)


def is_due(run: Run, now: Instant) -> bool:
    """Returns whether only a worker is missing, so that it matters who serves the queue."""
    return run.status in CLAIMABLE and (run.cancel_deadline is not None or (run.available_at or 0) <= now)


def executes(worker: Worker, run: Run) -> bool:
    return run.task_queue in worker.queues and any(
        offered.name == run.workflow_type and offered.version in (None, run.version) for offered in worker.types
    )


def _held(run: Run, steps: Sequence[Step], holder: Worker | None, now: Instant) -> str:
    if run.lease_expires_at is not None and run.lease_expires_at <= now:
        return (
            f"Its worker is lost: {_named(run, holder)} let the lease run out {_ago(run.lease_expires_at, now)} ago. "
            "Another worker takes the run over within moments."
        )
    heard = f", last heard of {_ago(holder.last_heartbeat_at, now)} ago" if holder is not None else ""
    drains = " and takes nothing new" if holder is not None and holder.status is WorkerStatus.DRAINING else ""
    held = f"Held by {_named(run, holder)}{heard}{drains}"
    if run.cancel_deadline is not None:
        return f"Cancelling: it may clean up until {_at(run.cancel_deadline, now)}. {held}."
    return f"{held}; {_doing(steps, now)}.{_crashes(run)}"


def _doing(steps: Sequence[Step], now: Instant) -> str:
    """Says what a run does under its lease. A step that is over within 100 ms never shows as running."""
    running = [step for step in steps if step.status is StepStatus.RUNNING and step.kind is StepKind.FUNCTION]
    if running:
        longest = min(running, key=lambda step: step.started_at)
        attempt = f", attempt {longest.attempt}," if longest.attempt > 1 else ""
        more = f", and {len(running) - 1} more" if len(running) > 1 else ""
        return f"step {longest.name}{attempt} has been running for {_ago(longest.started_at, now)}{more}"
    if (retry := _next_retry(steps, now)) is not None:
        return _retrying(retry, now)
    return "no step has been running for longer than a moment"


def _waiting(run: Run, steps: Sequence[Step] | None, until: Instant, now: Instant, untaken: Sequence[str]) -> str:
    if run.status is RunStatus.PENDING:
        if run.executions == 0:
            return f"Delayed: it starts at {_at(until, now)}."
        if run.crashes:
            lost = f"its worker was lost {_times(run.crashes)} in a row"
            return f"To be taken again: {lost}, so another one may have it at {_at(until, now)}."
        return f"To be tried again: attempt {run.attempts + 1} of the run is at {_at(until, now)}{_after(run.error)}."
    if run.waiting_for:
        ends = [] if steps is None else [step.finished_at for step in steps if step.finished_at is not None]
        since = None if steps is None else max(ends, default=run.started_at)
        waited = "" if since is None else f" since {_moment(since)} ({_ago(since, now)})"
        end = "" if NEWS_ALONE in run.waiting_for else f", until {_at(until, now)}"
        default = ", then default" if THEN_DEFAULT in run.waiting_for else ""
        return f"Waiting for {_awaited(run.waiting_for)}{waited}{end}{default}.{_not_awaited(run.waiting_for, untaken)}"
    if steps is None:
        return f"Parked until {_at(until, now)}."
    if (retry := _next_retry(steps, now)) is not None:
        sentence = _retrying(retry, now)
        return f"{sentence[0].upper()}{sentence[1:]}."
    return f"Sleeping until {_at(until, now)}."


def _due(run: Run, serving: Sequence[Worker], others: Sequence[Worker], now: Instant) -> str:
    nobody = _nobody(run, serving, others)
    if nobody is not None:
        return f"Waiting for a worker: {nobody}.{_crashes(run)}"
    able = [worker for worker in serving if executes(worker, run)]
    slots, used = sum(worker.concurrency for worker in able), sum(worker.active for worker in able)
    since = "" if run.available_at is None else f" for {_ago(run.available_at, now)}"
    busy = "; they are full" if used >= slots else ""
    return (
        f"Waiting{since} for one of {_count(len(able), 'worker')} of queue {run.task_queue} to take it, with {used} of "
        f"{_count(slots, 'slot')} in use{busy}.{_crashes(run)}"
    )


def _paused(run: Run, limits: Sequence[FlowLimit], now: Instant) -> str | None:
    """Says that nothing like the run is handed out, since when, and by whom."""
    for limit in limits:
        if limit.paused_at is not None and limit.concerns(run.task_queue, run.workflow_type):
            by = f" by {limit.paused_by}" if limit.paused_by not in ("", "anyone") else ""
            reason = f": {' '.join(limit.pause_reason.split())}" if limit.pause_reason.strip() else ""
            return f"{limit.about} was paused{by} at {_at(limit.paused_at, now)}{reason}"
    return None


def _slot(wait: SlotWait, now: Instant) -> str:
    """Says which limit is reached, and how many have come before."""
    before = f"{wait.before:,}" if wait.before < MOST_BEFORE else f"at least {wait.before:,}"
    if wait.rate is not None:
        left = max(0, (wait.next_at or now) - now)
        following = format_span(left - left % 1000)  # a millisecond is enough
        return f"Waits for its turn: {wait.rate} of {wait.slots} begin, the next in {following}, {before} before it."
    return f"Waits for a slot of {wait.slots}: {wait.running:,} of {wait.most:,} run, {before} before it."


def _nobody(run: Run, serving: Sequence[Worker], others: Sequence[Worker]) -> str | None:
    """Says that no worker can take the run, and which workers there are instead."""
    if any(executes(worker, run) for worker in serving):
        return None
    if not serving:
        queues = sorted({queue for worker in others for queue in worker.queues})
        there = f"; those online serve {_some(queues, 'queue')}" if queues else ", and no other worker is online either"
        return f"no worker that is online serves queue {run.task_queue}{there}"
    versions = sorted(
        {each.version or "*" for worker in serving for each in worker.types if each.name == run.workflow_type}
    )
    if versions:
        what = f"version {run.version} of {run.workflow_type}"
        there = f"they have {_some(versions, 'version')}"
    else:
        what = f"workflow {run.workflow_type}"
        names = sorted({each.name for worker in serving for each in worker.types})
        meant = alike(run.workflow_type, names)
        there = f"they have {_some(names, 'workflow')}" if names else "they have none"
        what = what if meant is None else f"{what} (did you mean {meant}?)"
    return f"no worker of queue {run.task_queue} has {what}; {there}"


def _next_retry(steps: Sequence[Step], now: Instant) -> Step | None:
    """The step that is tried again first, of those that wait for another attempt."""
    newest: dict[str, Step] = {}
    for step in steps:
        if step.step_id not in newest or newest[step.step_id].attempt < step.attempt:
            newest[step.step_id] = step
    waiting = [
        step
        for step in newest.values()
        if step.status is StepStatus.FAILED and step.completed_seq is None and (step.retry_at or 0) > now
    ]
    return min(waiting, key=lambda step: step.retry_at or 0, default=None)


def _retrying(step: Step, now: Instant) -> str:
    return f"attempt {step.attempt + 1} of step {step.name} is at {_at(step.retry_at or now, now)}{_after(step.error)}"


def _awaited(waiting_for: Iterable[str]) -> str:
    kinds: dict[str, list[str]] = {"s": [], "c": []}
    for each in waiting_for:
        kind, _, name = each.partition(":")
        kinds.setdefault(kind, []).append(name)
    parts = []
    for kind, noun, anything in (("s", "signal", "any signal"), ("c", "child", "any child")):
        names = kinds[kind]
        if names:
            parts.append(anything if "*" in names else _some(names, noun, between=" or "))
    return " or ".join(parts) or "news"


def _not_awaited(waiting_for: Iterable[str], untaken: Iterable[str]) -> str:
    """Names the signals that a run which waits for others has and has not taken: one of them may be mistyped."""
    awaited = set(waiting_for)
    names = list(dict.fromkeys(name for name in untaken if awaits_signal(name) not in awaited))
    if not names or awaits_signal("*") in awaited or not any(each.startswith("s:") for each in awaited):
        return ""
    return f" It was sent {_some(names, 'signal')}, which it does not wait for."


def awaited_signals(run: Run) -> str | None:
    """Returns for which signals a parked run waits, as a sentence says it; None if it waits for none."""
    names = [each for each in run.waiting_for if each.startswith("s:")]
    return _awaited(names) if names and run.status is RunStatus.SLEEPING else None


def _crashes(run: Run) -> str:
    if run.crashes < SUSPECT_CRASHES:
        return ""
    lost = f"Its workers were lost {_times(run.crashes)} in a row without anything new recorded"
    return f" {lost}: it may be what ends them."


def _named(run: Run, holder: Worker | None) -> str:
    if holder is None:
        return f"worker {run.worker_id or 'unknown'}"
    return f"worker {holder.worker_id[-8:]} (process {holder.pid} on {holder.hostname})"


def _after(error: bytes | None) -> str:
    if not error:
        return ""
    text = " ".join(str(Failure.decode(error)).split())
    return f", after {text if len(text) <= _ERROR_CHARACTERS else f'{text[:_ERROR_CHARACTERS]}…'}"


def _at(instant: Instant, now: Instant) -> str:
    span = _rounded(abs(instant - now))
    return f"{_moment(instant)} ({f'in {span}' if instant > now else f'{span} ago'})"


def _ago(instant: Instant, now: Instant) -> str:
    return _rounded(max(0, now - instant))


def _rounded(span: Span) -> str:
    """Returns the length in whole seconds: fractions are noise here."""
    return format_span(max(1, round(span / SECOND)) * SECOND)


def _moment(instant: Instant) -> str:
    return to_datetime(instant).strftime("%Y-%m-%d %H:%M:%S UTC")


def _some(names: Sequence[str], noun: str, *, between: str = ", ") -> str:
    named = between.join(names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{noun if len(names) == 1 else f'{noun}s'} {named}{more}".replace("childs", "children")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
