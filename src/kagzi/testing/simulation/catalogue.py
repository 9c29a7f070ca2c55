"""Every workflow of a simulated world, by its name."""

from __future__ import annotations

from functools import cache
from typing import Any

from kagzi.core.versions import WorkflowInterface
from kagzi.sdk.definitions.workflow import Workflow
from kagzi.sdk.interfaces import describe_all
from kagzi.testing.simulation import bulk as runs_in_bulk
from kagzi.testing.simulation import limited, restarts, workload

Workflows = dict[tuple[str, str], Workflow[Any, Any]]


def workflow_named(name: str, version: str = "1") -> Any:
    """The workflow that orders and runs call so."""
    found = _ALL.get((name, version))
    assert found is not None, f"there is no workflow {name} {version}"
    return found


def workflows_of(seed: int, *, bulk: bool) -> Workflows:
    """What the workers of this world execute."""
    found = dict(workload.app._workflows)
    if limited.has_limits(seed):
        found |= limited.app._workflows
    if restarts.has_restarts(seed):
        found |= restarts.app._workflows
    if bulk:
        found |= runs_in_bulk.app._workflows
    return found


def interfaces_of(workflows: Workflows) -> tuple[WorkflowInterface, ...]:
    """What their workers tell of them, which is the same in each of their lives and made once."""
    return _described(tuple(sorted(workflows)))


@cache
def _described(names: tuple[tuple[str, str], ...]) -> tuple[WorkflowInterface, ...]:
    return describe_all([_ALL[name] for name in names])


_ALL: Workflows = {
    **workload.app._workflows,
    **limited.app._workflows,
    **restarts.app._workflows,
    **runs_in_bulk.app._workflows,
}
# Written in four files, and one program: what these workflows call belongs to the same app.
for _workflow in _ALL.values():
    _workflow._app = workload.app
