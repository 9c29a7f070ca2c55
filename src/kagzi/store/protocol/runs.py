"""Reading runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from kagzi.api.admin import RunCount
from kagzi.api.workflows import RunFilter
from kagzi.core.instant import Instant
from kagzi.core.page import Cursor
from kagzi.core.run import Run
from kagzi.core.run_value import RunValue
from kagzi.core.step import Step
from kagzi.core.workflow_report import Sample


class RunFacts(Struct, frozen=True, kw_only=True):
    """A run without its payloads: the labels it is counted under, its queue, and the last worker that drove it."""

    namespace: str
    run_id: str
    workflow_type: str
    task_queue: str
    worker_id: str | None
    started_at: Instant | None
    finished_at: Instant | None


class FoundRuns(Struct, frozen=True):
    """Runs that match a filter. `searched_until`: the last one that was looked at, if there may be more beyond it and
    these are fewer than were asked for."""

    runs: list[Run]
    searched_until: str | None = None


class Runs(Protocol):
    """Runs as people and engines look at them. Schedules' templates are no runs, and no method here knows them."""

    async def get(self, namespace: str, run_id: str) -> Run | None: ...

    async def get_many(self, runs: Sequence[tuple[str, str]]) -> list[Run]:
        """Returns the runs of these (namespace, run_id) that exist, in any order."""
        ...

    async def get_by_external_id(self, namespace: str, external_id: str) -> Run | None: ...

    async def find(self, namespace: str, external_id: str) -> str | None:
        """Returns the run id of the run that has this id, without reading the run."""
        ...

    async def search(self, filter: RunFilter, cursor: Cursor | None, limit: int) -> FoundRuns:
        """Returns runs, the newest first, beyond the cursor. Going backward: the `limit` nearest newer rows, nearest
        first. With a filter it looks at a bounded number of runs (`store/searching.py`)."""
        ...

    async def steps(self, namespace: str, run_id: str, payloads: bool = True, step_id: str | None = None) -> list[Step]:
        """Returns every row of the run, or of one of its steps; events in order first, then the others by start.
        Without `payloads` their inputs and outputs are None."""
        ...

    async def values(self, namespace: str, run_id: str, names: Sequence[str], after: str) -> list[RunValue]:
        """Returns the values of a run in the order of their names, byte for byte, beyond `after`; with `names` only
        these."""
        ...

    async def finished_of(self, runs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Returns which of these (namespace, run_id) have finished or do not exist."""
        ...

    async def facts_of(self, runs: Sequence[tuple[str, str]]) -> list[RunFacts]:
        """Returns the facts of those of these (namespace, run_id) that exist, in any order."""
        ...

    async def sample(self, namespace: str, workflow_type: str | None) -> Sample:
        """Returns the newest runs of a workflow, or of all and then without their steps. Without payloads, and within
        the bounds of `core.workflow_report`."""
        ...

    async def count(
        self,
        namespace: str | None,
        live: bool,
        created_after: Instant | None = None,
        created_before: Instant | None = None,
    ) -> list[RunCount]:
        """Counts all runs or only live ones, by type, queue and status; of one namespace or of all. Reads no more rows
        than `store.counting` allows."""
        ...
