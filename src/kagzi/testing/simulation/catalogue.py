"""Every workflow of a simulated world, by its name."""

from __future__ import annotations

from typing import Any

from kagzi.sdk.definitions.workflow import Workflow
from kagzi.testing.simulation import limited, restarts, workload

Workflows = dict[tuple[str, str], Workflow[Any, Any]]


def workflow_named(name: str, version: str = "1") -> Any:
    """The workflow that orders and runs call so."""
    found = _ALL.get((name, version))
    assert found is not None, f"there is no workflow {name} {version}"
    return found


def workflows_of(seed: int) -> Workflows:
    """What the workers of this world execute."""
    found = dict(workload.app._workflows)
    if limited.has_limits(seed):
        found |= limited.app._workflows
    if restarts.has_restarts(seed):
        found |= restarts.app._workflows
    return found


_ALL: Workflows = {**workload.app._workflows, **limited.app._workflows, **restarts.app._workflows}
