"""Who has an id: one run at a time, and a finished run gives its own up once. (11)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kagzi.api.operations import StartRun
from kagzi.core.conflict import OnConflict
from kagzi.core.run import RunStatus
from kagzi.testing.simulation.checks.rows import RunRow, difference, wrong

if TYPE_CHECKING:
    from kagzi.testing.simulation.world import World


class Ids:
    def __init__(self, world: World, runs: dict[str, RunRow]) -> None:
        self._world = world
        self._runs = runs  # as they are after the transaction
        self._holders: dict[tuple[str, str], str] = {}

    def check(self, before: dict[str, RunRow], touched: list[RunRow], method: str, args: tuple[Any, ...]) -> None:
        starts = {write.run_id: write for write in args[0] if isinstance(write, StartRun)} if method == "apply" else {}
        for row in touched:
            old = before.get(row.run_id)
            if old is not None and old.external_id is not None and row.external_id is None:
                self._check_given_up(old, row, before)
                start = starts.get(row.superseded_by or "")
                if start is not None and not _may_restart(start.on_conflict, row.status):
                    raise wrong(row.run_id, f"is {row.status}, and gave its id up to {start}")
                del self._holders[row.namespace, old.external_id]
        for row in touched:
            if row.external_id is not None:
                holder = self._holders.setdefault((row.namespace, row.external_id), row.run_id)
                if holder != row.run_id:
                    raise wrong(row.run_id, f"has the external id of {holder}")

    def _check_given_up(self, old: RunRow, new: RunRow, before: dict[str, RunRow]) -> None:
        heir = self._runs.get(new.superseded_by or "")
        if heir is None or heir.run_id in before or heir.external_id != old.external_id:
            raise wrong(new.run_id, f"gave its id up to {heir}")
        self._world.operation("id taken over")


def _may_restart(on_conflict: OnConflict, status: RunStatus) -> bool:
    if on_conflict is OnConflict.RESTART_FAILED:
        return status in (RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TIMED_OUT)
    return on_conflict is OnConflict.RESTART_FINISHED and status.finished


def superseded(old: RunRow, new: RunRow) -> bool:
    """Whether a finished run has given its id up, for the first time, and changed in nothing else."""
    given_up = msgspec.structs.replace(
        old, external_id=None, former_id=old.external_id, superseded_by=new.superseded_by
    )
    return (
        old.external_id is not None
        and old.superseded_by is None
        and new.superseded_by is not None
        and not difference(given_up, new)
    )
