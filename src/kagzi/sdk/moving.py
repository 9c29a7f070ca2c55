"""Moves runs to another version, if wanted after a look at what is recorded of each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from msgspec.structs import replace

from kagzi.api.engine import Engine
from kagzi.api.versions import VersionService
from kagzi.api.workflows import RunFilter
from kagzi.core.page import Page
from kagzi.core.run import Run, RunStatus
from kagzi.core.versions import CheckedRun
from kagzi.errors import InvalidRequest, NotFound
from kagzi.sdk.foreign import place_of
from kagzi.sdk.histories import export_history
from kagzi.sdk.records import MoveRecord, RefusedMove
from kagzi.sdk.replaying import Differs, Offers, replay

_PAGE: Final = 100


async def move_runs(
    versions: VersionService,
    namespace: str,
    workflow: str,
    from_version: str,
    to_version: str,
    *,
    dry_run: bool,
    force: bool,
) -> MoveRecord:
    """Moves runs that wait or sleep, page by page, without looking at their histories."""
    moved, after = 0, ""
    while True:
        page = await versions.move(
            namespace, workflow, from_version, to_version, dry_run=dry_run, force=force, after=after
        )
        moved += page.moved
        if page.after is None:
            return MoveRecord(moved=moved, running=await _running(versions, namespace, workflow, from_version))
        after = page.after


async def move_checked_runs(
    engine: Engine,
    versions: VersionService,
    app: Offers,
    namespace: str,
    workflow: str,
    from_version: str,
    to_version: str,
    *,
    dry_run: bool,
    force: bool,
) -> MoveRecord:
    """Moves the runs whose history the code of this app replays in the other version. A run that somebody claims
    between the look and the move stays: more may be recorded of it by then."""
    if app.find_workflow(workflow, to_version) is None:
        known = [offered.version or "every" for offered in app.workflow_types() if offered.name == workflow]
        there = f"its versions there are {', '.join(known)}" if known else "it has no workflow of that name"
        raise InvalidRequest(f"the app cannot check a move to {workflow} {to_version}: {there}")
    # A page of a dry run says whether any of this makes sense.
    await versions.move(namespace, workflow, from_version, to_version, dry_run=True, force=force)
    refused: dict[str, RefusedMove] = {}
    moved = changed = 0
    async for page in _pages(engine, namespace, workflow):
        checked: list[CheckedRun] = []
        for run in page.items:
            if run.version != from_version:
                continue
            try:
                found = await _refusal(engine, app, run, to_version)
            except NotFound:  # it was deleted meanwhile
                continue
            if found is not None:
                refused[run.run_id] = found
            else:
                checked.append(CheckedRun(run.run_id, run.executions))
        done = len(checked)
        if checked and not dry_run:
            done = await versions.move_checked(namespace, workflow, from_version, to_version, checked)
        moved, changed = moved + done, changed + len(checked) - done
    running = await _running(versions, namespace, workflow, from_version)
    return MoveRecord(moved=moved, running=running, refused=tuple(refused.values()), changed=changed)


async def _pages(engine: Engine, namespace: str, workflow: str) -> AsyncIterator[Page[Run]]:
    """Lists what waits, then what sleeps. A run may come twice, if it goes from one to the other meanwhile."""
    for status in (RunStatus.PENDING, RunStatus.SLEEPING):
        wanted = RunFilter(namespace=namespace, workflow_type=workflow, status=status)
        token = None
        while True:
            page = await engine.workflows.list(wanted, page_size=_PAGE, page_token=token)
            yield page
            token = page.next
            if token is None:
                break


async def _refusal(engine: Engine, app: Offers, run: Run, to_version: str) -> RefusedMove | None:
    """Returns why this run cannot go on in the other version; None if it can."""
    history = replace(await export_history(engine, run), version=to_version)
    try:
        replay(history, app)
    except Differs as differs:
        found = differs.difference
        workflow = app.find_workflow(run.workflow_type, to_version)
        return RefusedMove(
            run_id=run.run_id,
            id=run.external_id,
            event=found.event,
            recorded=found.recorded,
            present=found.present,
            place=found.place or ("an unknown place" if workflow is None else place_of(workflow.fn)),
        )
    return None


async def _running(versions: VersionService, namespace: str, workflow: str, version: str) -> int:
    found = (await versions.list(namespace, workflow)).items
    return sum(each.running for each in found if each.version == version)
