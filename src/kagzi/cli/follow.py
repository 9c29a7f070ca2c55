"""Follows a run to its end, and finds it by less than its whole id."""

from __future__ import annotations

import asyncio
import re
import sys

from kagzi.api.engine import Engine, ManagedEngine
from kagzi.api.workflows import RunFilter
from kagzi.cli import output
from kagzi.cli.main import FAILED
from kagzi.core.duration import format_span
from kagzi.core.failure import Failure
from kagzi.core.instant import SECOND, Span
from kagzi.core.run import CLAIMABLE, Run, RunStatus
from kagzi.core.step import StepStatus
from kagzi.errors import InvalidRequest, NotFound, Unavailable
from kagzi.sdk.unserved import why_nobody_comes

_LOOK = SECOND
_AGAIN_SECONDS = 1.0
_PREFIX = re.compile(r"^[0-9a-f][0-9a-f-]{3,35}$")
_SKEW = 600 * SECOND  # how far the clocks of client and database may be apart
_MOST_PAGES = 20


async def wait_for(engine: Engine, namespace: str, run_id: str, timeout: Span | None, *, steps: bool = False) -> Run:
    """Returns the run when it has finished; TimeoutError if that takes too long. With `steps` each is told of on the
    way."""
    seen: set[tuple[str, int, StepStatus]] = set()
    failures = 0
    try:
        async with asyncio.timeout(None if timeout is None else timeout / SECOND):
            while True:
                try:
                    found = await engine.workflows.wait(namespace, run_id, _LOOK if steps else 60 * SECOND)
                    if steps:
                        await _tell(engine, found, seen)
                except Unavailable as error:
                    failures += 1
                    if failures in (1, 10, 100):
                        often = "" if failures == 1 else f" ({failures} times in a row)"
                        output.note(f"{error}{often}; trying again")
                    await asyncio.sleep(_AGAIN_SECONDS)
                    continue
                if failures:
                    output.note("it is in reach again")
                    failures = 0
                if found.status.finished:
                    return found
    except TimeoutError:
        waited = "" if timeout is None else f" within {format_span(timeout)}"
        raise TimeoutError(f"run {run_id} has not finished{waited}; it goes on") from None


async def note_if_nobody_comes(engine: ManagedEngine, place: str, found: Run) -> None:
    """Prints a note if no worker is there for a run: its worker may look at another database."""
    if found.status not in CLAIMABLE:
        return
    why = await why_nobody_comes(
        engine,
        place,
        namespace=found.namespace,
        queue=found.task_queue,
        workflow=found.workflow_type,
        version=found.version,
    )
    if why is not None:
        output.note(why)


async def _tell(engine: Engine, found: Run, seen: set[tuple[str, int, StepStatus]]) -> None:
    for step in await engine.workflows.steps(found.namespace, found.run_id, payloads=False):
        key = (step.step_id, step.attempt, step.status)
        if key in seen:
            continue
        seen.add(key)
        attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
        took = "" if step.finished_at is None else f" after {format_span(max(0, step.finished_at - step.started_at))}"
        error = f": {Failure.decode(step.error)}" if step.error else ""
        at = output.moment(step.finished_at or step.started_at)
        output.note(f"{at} {step.step_id}: {step.status.value}{attempt}{took}{error}")


def finish(found: Run, *, json: bool) -> None:
    """Prints what a finished run came to, and ends with the exit code that says so."""
    if json:
        output.document(output.run_details(found, (), ()))
    elif found.status is RunStatus.COMPLETED:
        output.line(output.payload(found.output))
    if found.status is RunStatus.COMPLETED:
        return
    failure = Failure.decode(found.error) if found.error else None
    detail = "" if failure is None else f": {failure}"
    output.note(f"{found.workflow_type} {found.run_id} {found.status.value.lower().replace('_', ' ')}{detail}")
    sys.exit(FAILED)


async def find_run(engine: Engine, namespace: str, text: str) -> Run:
    """Finds a run by its run id, by the beginning of one, or by the id it was started with."""
    lower = text.lower()
    if len(lower) == 36 and _PREFIX.match(lower):
        try:
            return await engine.workflows.get(namespace, lower)
        except NotFound:
            pass  # some have ids of this form of their own
    elif _PREFIX.match(lower):
        found = await _by_prefix(engine, namespace, lower)
        if found is not None:
            return found
    try:
        return await engine.workflows.get_by_external_id(namespace, text)
    except NotFound:
        raise NotFound(
            f"there is no run {text!r} in namespace {namespace}, by run id or by the id it was started with"
        ) from None


async def _by_prefix(engine: Engine, namespace: str, prefix: str) -> Run | None:
    # A run id begins with its time of creation, so its beginning says where to look.
    digits = prefix.replace("-", "")[:12]
    earliest = int(digits.ljust(12, "0"), 16) * 1000 - _SKEW
    latest = int(digits.ljust(12, "f"), 16) * 1000 + _SKEW
    most = 253_402_300_799_000_000
    wanted = RunFilter(
        namespace=namespace, created_after=min(max(0, earliest), most), created_before=min(max(0, latest), most)
    )
    matches: list[Run] = []
    token: str | None = None
    for _ in range(_MOST_PAGES):
        page = await engine.workflows.list(wanted, page_size=100, page_token=token)
        matches += [run for run in page.items if run.run_id.startswith(prefix)]
        token = page.next
        if token is None or len(matches) > 1:
            break
    if len(matches) > 1:
        some = ", ".join(run.run_id for run in matches[:3])
        raise InvalidRequest(f"several runs begin with {prefix}: {some}; say more of it")
    if token is not None and not matches:
        raise InvalidRequest(f"too many runs to look through for {prefix}; say more of its id")
    return matches[0] if matches else None
