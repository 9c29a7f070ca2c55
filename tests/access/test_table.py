"""The table of who may do what, compared with everything that can be asked of a server."""

from __future__ import annotations

import pytest

from kagzi.access import ACTIONS, Role
from kagzi.http.routes import ROUTES
from kagzi.rpc.methods import METHODS

RPCS = {action for action in ACTIONS if action.startswith("/")}
# What changes something for others and is no part of a run's ordinary life.
CHANGES = (
    "Cancel",
    "Retry",
    "Terminate",
    "Drain",
    "Create",
    "Update",
    "Delete",
    "Trigger",
    "Pause",
    "Resume",
    "Enable",
)


def test_every_rpc_and_every_route_is_in_the_table() -> None:
    assert set(METHODS) == RPCS
    assert {route.action for route in ROUTES if not route.public} == set(ACTIONS) - RPCS


def test_only_probes_are_public() -> None:
    assert {route.path for route in ROUTES if route.public} == {"/livez", "/readyz"}


@pytest.mark.parametrize("action", ACTIONS)
def test_nobody_is_above_an_admin_and_viewers_only_look(action: str) -> None:
    rule = ACTIONS[action]
    assert Role.ADMIN in rule.roles
    if rule.audited:
        assert Role.VIEWER not in rule.roles
        assert Role.WORKER not in rule.roles
    if action.startswith("GET "):
        assert not rule.audited
    elif not action.startswith("/"):
        assert Role.VIEWER not in rule.roles


@pytest.mark.parametrize("path", METHODS)
def test_every_change_is_audited(path: str) -> None:
    rpc = METHODS[path].rpc
    assert ACTIONS[path].audited is rpc.startswith((*CHANGES, "Disable"))


@pytest.mark.parametrize("path", METHODS)
def test_every_request_says_where_or_needs_a_key_for_all(path: str) -> None:
    # What has no namespace cannot be confined to one. Which version a server is concerns none of them.
    assert METHODS[path].has_namespace or ACTIONS[path].everywhere or METHODS[path].rpc == "GetServerInfo"


def test_workers_do_not_touch_what_they_do_not_hold() -> None:
    allowed = {METHODS[path].rpc for path in METHODS if Role.WORKER in ACTIONS[path].roles}
    assert allowed.isdisjoint(
        {"CancelWorkflow", "TerminateWorkflow", "RetryWorkflow", "DrainWorker", "CreateNamespace"}
    )
    assert {method.rpc for method in METHODS.values() if method.service == "WorkerService"} <= allowed
