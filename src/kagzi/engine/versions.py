"""Versions of workflows: which one a start gets if it names none, and what people ask about them.

A start in Python names the version of the workflow it is called on. Starts by name (commands, HTTP, an empty version on
the wire) say None, and that is what reaches the engine. Here it becomes a version, before a place is reserved for the
run: adopters are asked for one of this version. What the code of the workflow says of its runs comes with it. What was
looked up counts for a second, so that is how long a new default may take to reach every process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from kagzi.api.operations import StartRun
from kagzi.core.alike import alike
from kagzi.core.instant import Span
from kagzi.core.limits import check_id, check_name
from kagzi.core.versions import CheckedRun, MovedRuns, Resolved, Versions, WorkflowInterface
from kagzi.core.workflow_report import WorkflowReport, make_report
from kagzi.engine.by_name import READ_AT_ONCE, with_defaults
from kagzi.engine.patience import Patience, patient
from kagzi.engine.remembered import Remembered
from kagzi.engine.wakeups import Wakeups
from kagzi.errors import InvalidRequest, NotFound
from kagzi.store.protocol.store import Store

_FRESH_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 2.0
_REMEMBERED: Final = 10_000
_LISTED: Final = 1000
_NAMED: Final = 20  # versions that an error tells of
_LOOKED_AT: Final = 1000  # runs in one transaction that moves some
_BEGINNING: Final = ("", -(2**63), "00000000-0000-0000-0000-000000000000")

_Asked = tuple[str, str, str | None]  # namespace, workflow, and the version that a start names


def _counted(versions: Versions) -> int:
    return sum(each.live for each in versions.items)


class VersionRegistry:
    """`api.versions.VersionService` over a store. Also tells starts which version they get."""

    def __init__(self, store: Store, stale: Span, wakeups: Wakeups, patience: Patience) -> None:
        self._store = store
        self.patience = patience
        self._wakeups = wakeups
        self._stale = stale
        self._loop = asyncio.get_running_loop()
        self._listed = Remembered[tuple[str, str | None], Versions](_counted)
        self._reports = Remembered[tuple[str, str | None], WorkflowReport](
            lambda report: report.runs, least=_REPORT_SECONDS
        )
        self._found: dict[_Asked, tuple[float, Resolved]] = {}  # and when it was asked for
        self._looking: dict[_Asked, asyncio.Task[Resolved]] = {}

    # What starts ask.

    def completed(self, start: StartRun) -> StartRun | None:
        """Returns a start that says everything about its run; None if that takes longer (`complete`). One by name gets
        what the code of the workflow says, as starts in Python do; InvalidRequest if its input does not fit."""
        if start.version is not None and not start.by_name:
            return start
        if len(start.input) > READ_AT_ONCE:
            return None
        resolved = self._looked_up(start.namespace, start.workflow_type, start.version)
        return None if resolved is None or not resolved.known else with_defaults(start, resolved)

    async def complete(self, start: StartRun) -> tuple[StartRun, str]:
        """Returns a start that says everything about its run, as `completed` does, and what its caller should be told:
        that no worker has offered the workflow."""
        if start.version is not None and not start.by_name:
            return start, ""
        resolved = await self.resolve(start.namespace, start.workflow_type, start.version)
        if len(start.input) > READ_AT_ONCE:
            return await asyncio.to_thread(with_defaults, start, resolved), ""
        return with_defaults(start, resolved), "" if resolved.known else await self._doubt(start, resolved.version)

    async def _doubt(self, start: StartRun, version: str) -> str:
        """Returns what to say of a start by a name that no worker has offered: one may come, or the name is wrong."""
        name = start.workflow_type
        known = (await self.list(start.namespace)).items
        offered = [each for each in known if each.first_seen_at is not None]
        versions = [each.version or "every" for each in offered if each.workflow_type == name]
        if versions:
            return (
                f"no worker has offered version {version} of workflow {name}; known are {', '.join(versions[:_NAMED])}"
            )
        said = f"no worker has offered workflow {name} in namespace {start.namespace}, so the run waits until one does"
        return said + await self._meant(start.namespace, name)

    async def _meant(self, namespace: str, name: str) -> str:
        """Returns the end of a sentence about a workflow that is not there: which one may be meant."""
        offered = [each for each in (await self.list(namespace)).items if each.first_seen_at is not None]
        meant = alike(name, (each.workflow_type for each in offered if each.workflow_type != name))
        return "" if meant is None else f"; did you mean {meant}?"

    def _looked_up(self, namespace: str, workflow_type: str, version: str | None) -> Resolved | None:
        """Returns what was looked up within the last second."""
        at, resolved = self._found.get((namespace, workflow_type, version), (0.0, None))
        return resolved if resolved is not None and self._loop.time() - at <= _FRESH_SECONDS else None

    async def resolve(self, namespace: str, workflow_type: str, version: str | None = None) -> Resolved:
        """Looks up what a start by name gets. Callers that ask at the same time share one query."""
        resolved = self._looked_up(namespace, workflow_type, version)
        if resolved is not None:
            return resolved
        key = (namespace, workflow_type, version)
        task = self._looking.get(key)
        if task is None:
            task = self._looking[key] = self._loop.create_task(self._look_up(key), name="kagzi-version")
            task.add_done_callback(lambda done: self._looked(key, done))
        return await asyncio.shield(task)

    async def _look_up(self, key: _Asked) -> Resolved:
        begun = self._loop.time()  # what changes while the question is under way may not be in its answer
        resolved = await self._store.versions.resolve(*key)
        if self._looking.get(key) is asyncio.current_task():  # else it has changed meanwhile
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[key] = (begun, resolved)
        return resolved

    def _looked(self, key: _Asked, task: asyncio.Task[Resolved]) -> None:
        if self._looking.get(key) is task:
            del self._looking[key]
        if not task.cancelled():
            task.exception()  # those who waited have it

    async def check_known(self, namespace: str, workflow_type: str, version: str) -> None:
        """Raises InvalidRequest, with the versions that are known, for one that no worker has ever offered."""
        known = [each for each in (await self._look(namespace, workflow_type)).items if each.first_seen_at is not None]
        if any(each.version in (version, None) for each in known):
            return
        names = ", ".join([str(each.version) for each in known[:_NAMED]]) or "none"
        raise InvalidRequest(
            f"no worker has ever offered version {version} of workflow {workflow_type} in namespace {namespace}; "
            f"known are {names}"
        )

    # What people ask.

    async def list(self, namespace: str, workflow_type: str | None = None) -> Versions:
        check_name(namespace, "namespace")
        if workflow_type is not None:
            check_name(workflow_type, "workflow type")
        return await self._listed.get((namespace, workflow_type), lambda: self._look(namespace, workflow_type))

    async def describe(self, namespace: str, workflow_type: str, version: str | None = None) -> WorkflowInterface:
        check_name(namespace, "namespace")
        check_name(workflow_type, "workflow type")
        wanted = (await self.resolve(namespace, workflow_type)).version if version is None else version
        check_name(wanted, "version")
        found = await self._store.versions.read_interface(namespace, workflow_type, wanted)
        if found is None:
            of = f"workflow {workflow_type}" if version is None else f"version {version} of workflow {workflow_type}"
            said = f"no worker has ever offered {of} in namespace {namespace}"
            raise NotFound(said + await self._meant(namespace, workflow_type))
        return found

    async def report(self, namespace: str, workflow_type: str | None = None) -> WorkflowReport:
        check_name(namespace, "namespace")
        if workflow_type is not None:
            check_name(workflow_type, "workflow type")

        async def sample() -> WorkflowReport:
            return make_report(workflow_type, await self._store.runs.sample(namespace, workflow_type))

        return await self._reports.get((namespace, workflow_type), sample)

    async def _look(self, namespace: str, workflow_type: str | None) -> Versions:
        return await self._store.versions.read(namespace, workflow_type, _LISTED, self._stale)

    @patient
    async def set_default(
        self, namespace: str, workflow_type: str, version: str | None, *, force: bool = False
    ) -> None:
        check_name(namespace, "namespace")
        check_name(workflow_type, "workflow type")
        if version is not None:
            check_name(version, "version")
        if not isinstance(force, bool):
            raise InvalidRequest(f"force must be true or false, not {force!r:.60}")
        done = await self._store.versions.set_default(namespace, workflow_type, version, force)
        self._listed.forget()
        # A look that is under way may have missed it: its answer is for those who wait for it, and not kept.
        self._looking.pop((namespace, workflow_type, None), None)
        self._found.pop((namespace, workflow_type, None), None)
        if not done:
            raise InvalidRequest(await self._unknown(namespace, workflow_type, version))

    @patient
    async def move(
        self,
        namespace: str,
        workflow_type: str,
        from_version: str,
        to_version: str,
        *,
        dry_run: bool = False,
        force: bool = False,
        after: str = "",
    ) -> MovedRuns:
        _check_move(namespace, workflow_type, from_version, to_version)
        place = _BEGINNING if not after else _place_of(after)
        if not after and not force:
            await self.check_known(namespace, workflow_type, to_version)
        page = await self._store.versions.move_runs(
            namespace, workflow_type, from_version, to_version, place, _LOOKED_AT, dry_run
        )
        if not dry_run:
            self._listed.forget()
            self._wake(namespace, page.queues)
        return MovedRuns(moved=page.moved, after=None if page.last is None else msgspec.json.encode(page.last).decode())

    @patient
    async def move_checked(
        self, namespace: str, workflow_type: str, from_version: str, to_version: str, runs: Sequence[CheckedRun]
    ) -> int:
        _check_move(namespace, workflow_type, from_version, to_version)
        if len(runs) > _LOOKED_AT:
            raise InvalidRequest(f"runs has {len(runs)} entries; at most {_LOOKED_AT} are moved at a time")
        for each in runs:
            check_id(each.run_id, "run_id")
            if not 0 <= each.executions < 2**31:
                raise InvalidRequest(f"executions of run {each.run_id} must be a count, not {each.executions}")
        page = await self._store.versions.move_checked_runs(namespace, workflow_type, from_version, to_version, runs)
        self._wake(namespace, page.queues)
        return page.moved

    def _wake(self, namespace: str, queues: Sequence[str]) -> None:
        for queue in queues:
            self._wakeups.available((namespace, queue), 0)

    async def _unknown(self, namespace: str, workflow_type: str, version: str | None) -> str:
        known = [each for each in (await self._look(namespace, workflow_type)).items if each.first_seen_at is not None]
        if not known:
            return (
                f"no worker has ever offered workflow {workflow_type} in namespace {namespace}, so version {version} "
                "cannot become its default; start a worker that has it first, or force it"
            )
        names = ", ".join([str(each.version) for each in known[:_NAMED]]) + (", …" if len(known) > _NAMED else "")
        return (
            f"no worker has ever offered version {version} of workflow {workflow_type} in namespace {namespace}; "
            f"known are {names}. Force it if one will"
        )


def _check_move(namespace: str, workflow_type: str, from_version: str, to_version: str) -> None:
    check_name(namespace, "namespace")
    check_name(workflow_type, "workflow type")
    check_name(from_version, "from_version")
    check_name(to_version, "to_version")
    if from_version == to_version:
        raise InvalidRequest(f"from_version and to_version are both {to_version!r}; there is nothing to move")


def _place_of(after: str) -> tuple[str, int, str]:
    """Reads where the last page ended. A text that no answer can have contained is refused."""
    try:
        queue, key, run_id = msgspec.json.decode(after, type=tuple[str, int, str])
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise InvalidRequest("after must be what the page before has answered") from None
    if not -(2**63) <= key < 2**63 or "\0" in queue:
        raise InvalidRequest("after must be what the page before has answered")
    return queue, key, check_id(run_id, "after")
