"""The table of who may do what, compared with everything that can be asked of a server."""

from __future__ import annotations

import pytest

from kagzi.access import ACTIONS, Role
from kagzi.dashboard import PAGES
from kagzi.http.routes import ROUTES
from kagzi.rpc.methods import EXCHANGE, METHODS

RPCS = {action for action in ACTIONS if action.startswith("/")}
# What changes something for others and is no part of a run's ordinary life.
CHANGES = (
    "Wake",
    "Cancel",
    "Retry",
    "Terminate",
    "Drain",
    "Clear",
    "Create",
    "Update",
    "Delete",
    "Trigger",
    "Backfill",
    "Pause",
    "Resume",
    "Set",
    "Enable",
    "Move",
)


def test_every_rpc_and_every_route_is_in_the_table() -> None:
    assert {*METHODS, EXCHANGE.path} == RPCS
    assert {route.action for route in (*ROUTES, *PAGES) if not route.public} == set(ACTIONS) - RPCS


def test_only_probes_are_public_and_what_it_takes_to_log_in() -> None:
    assert {route.path for route in ROUTES if route.public} == {"/livez", "/readyz"}
    assert {route.path for route in PAGES if route.public} == {"/login", "/logout", "/static/{file}"}


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
    assert ACTIONS[path].audited is (rpc.startswith((*CHANGES, "Disable")) or rpc == "StartJob")


@pytest.mark.parametrize("path", METHODS)
def test_every_request_says_where_or_needs_a_key_for_all(path: str) -> None:
    # What has no namespace cannot be confined to one. Which version a server is, and which times an expression means,
    # concerns none of them.
    anywhere = METHODS[path].rpc in ("GetServerInfo", "PreviewWorkflowSchedule")
    assert METHODS[path].has_namespace or ACTIONS[path].everywhere or anywhere


def test_workers_do_not_touch_what_they_do_not_hold() -> None:
    allowed = {METHODS[path].rpc for path in METHODS if Role.WORKER in ACTIONS[path].roles}
    assert allowed.isdisjoint(
        {"CancelWorkflow", "TerminateWorkflow", "RetryWorkflow", "DrainWorker", "CreateNamespace"}
    )
    assert {method.rpc for method in METHODS.values() if method.service == "WorkerService"} <= allowed


def expected_roles(service: str, rpc: str) -> set[Role]:
    """As docs/security.md says it, by what a call is about."""
    if service == "WorkerService":
        return {Role.ADMIN, Role.WORKER}
    if service == "JobService" and not rpc.startswith(("Get", "List")):
        return {Role.ADMIN, Role.CLIENT}
    if rpc.startswith(("Get", "List", "Wait", "Preview", "HealthCheck")):
        return set(Role)
    if rpc.startswith(("Start", "Signal")):
        return {Role.ADMIN, Role.CLIENT, Role.WORKER}
    if service in ("WorkflowService", "WorkflowScheduleService"):
        return {Role.ADMIN, Role.CLIENT}
    return {Role.ADMIN}


@pytest.mark.parametrize("path", METHODS)
def test_roles_may_do_what_they_are_for_and_no_more(path: str) -> None:
    method, rule = METHODS[path], ACTIONS[path]
    assert rule.roles == expected_roles(method.service, method.rpc)
    assert rule.starts is method.rpc.startswith(("Start", "Retry", "Trigger", "Backfill"))
    # Whoever sees one namespace neither makes, lists nor switches any.
    assert rule.everywhere is (
        method.service == "NamespaceService" and method.rpc not in ("GetNamespace", "UpdateNamespace")
    )


TWINS = {
    "GET /api/v1/runs": "ListWorkflows",
    "POST /api/v1/runs": "StartWorkflow",
    "GET /api/v1/runs/{run_id}": "GetWorkflow",
    "GET /api/v1/runs/{run_id}/steps": "ListSteps",
    "POST /api/v1/runs/{run_id}/cancel": "CancelWorkflow",
    "POST /api/v1/runs/{run_id}/terminate": "TerminateWorkflow",
    "POST /api/v1/runs/{run_id}/wake": "WakeWorkflow",
    "POST /api/v1/runs/{run_id}/retry": "RetryWorkflow",
    "POST /api/v1/runs/{run_id}/rerun": "RetryWorkflow",
    "POST /api/v1/runs/{run_id}/fork": "RetryWorkflow",
    "POST /api/v1/runs/{run_id}/delete": "DeleteWorkflow",
    "GET /api/v1/jobs": "ListJobs",
    "POST /api/v1/jobs": "StartJob",
    "POST /api/v1/job-preview": "PreviewJob",
    "GET /api/v1/jobs/{job_id}": "GetJob",
    "POST /api/v1/jobs/{job_id}/cancel": "CancelJob",
    "GET /api/v1/workers": "ListWorkers",
    "GET /api/v1/workers/{worker_id}": "GetWorker",
    "POST /api/v1/workers/{worker_id}/drain": "DrainWorker",
    "POST /api/v1/queues/{queue}/pause": "PauseClaims",
    "POST /api/v1/queues/{queue}/resume": "ResumeClaims",
    "POST /api/v1/workflows/{workflow}/pause": "PauseClaims",
    "POST /api/v1/workflows/{workflow}/resume": "ResumeClaims",
    "POST /api/v1/namespaces/{namespace}/pause": "PauseClaims",
    "POST /api/v1/namespaces/{namespace}/resume": "ResumeClaims",
    "GET /api/v1/limits": "ListLimits",
    "POST /api/v1/limits": "SetLimit",
    "GET /api/v1/queues": "GetQueueDepth",
    "GET /api/v1/workflows": "ListWorkflowTypes",
    "GET /api/v1/workflows/{workflow}": "GetWorkflowInterface",
    "GET /api/v1/workflows/{workflow}/report": "GetWorkflowReport",
    "GET /api/v1/versions": "ListVersions",
    "POST /api/v1/versions": "SetDefaultVersion",
    "POST /api/v1/versions/move": "MoveWorkflows",
    "GET /api/v1/stats": "GetStats",
    "GET /api/v1/health": "HealthCheck",
    "GET /api/v1/server": "GetServerInfo",
    "GET /api/v1/namespaces": "ListNamespaces",
    "POST /api/v1/namespaces": "CreateNamespace",
    "GET /api/v1/namespaces/{namespace}": "GetNamespace",
    "POST /api/v1/namespaces/{namespace}": "UpdateNamespace",
    "POST /api/v1/namespaces/{namespace}/enable": "EnableNamespace",
    "POST /api/v1/namespaces/{namespace}/disable": "DisableNamespace",
    "GET /api/v1/events": "WaitWorkflow",
    "GET /api/v1/openapi.json": "GetServerInfo",
    "POST /api/v1/runs/{run_id}/signals": "SignalWorkflow",
    "GET /api/v1/runs/{run_id}/signals": "ListSignals",
    "GET /api/v1/runs/{run_id}/values": "GetWorkflowValues",
    "GET /api/v1/schedules": "ListWorkflowSchedules",
    "POST /api/v1/schedules": "CreateWorkflowSchedule",
    "GET /api/v1/schedules/{schedule_id}": "GetWorkflowSchedule",
    "POST /api/v1/schedules/{schedule_id}": "UpdateWorkflowSchedule",
    "POST /api/v1/schedules/{schedule_id}/pause": "PauseWorkflowSchedule",
    "POST /api/v1/schedules/{schedule_id}/resume": "ResumeWorkflowSchedule",
    "POST /api/v1/schedules/{schedule_id}/reset": "UpdateWorkflowSchedule",
    "POST /api/v1/schedules/{schedule_id}/trigger": "TriggerWorkflowSchedule",
    "POST /api/v1/schedules/{schedule_id}/backfill": "BackfillWorkflowSchedule",
    "POST /api/v1/schedules/{schedule_id}/delete": "DeleteWorkflowSchedule",
    "GET /api/v1/schedules/{schedule_id}/runs": "ListScheduleRuns",
    "GET /api/v1/schedule-preview": "PreviewWorkflowSchedule",
    "GET /metrics": "ListNamespaces",  # labels name every namespace
}


def test_a_route_asks_for_what_the_rpc_of_the_same_purpose_asks_for() -> None:
    rules = {METHODS[path].rpc: ACTIONS[path] for path in METHODS}
    pages = {page.action for page in PAGES}
    assert {route: rules[rpc] for route, rpc in TWINS.items()} == {
        action: rule for action, rule in ACTIONS.items() if action not in RPCS and action not in pages
    }


PAGE_TWINS = {
    "POST /start": "POST /api/v1/runs",
    "POST /runs/{run_id}/signal": "POST /api/v1/runs/{run_id}/signals",
    "GET /runs/{run_id}/step": "GET /api/v1/runs/{run_id}/steps",
    "POST /limits/set": "POST /api/v1/limits",
    "POST /limits/clear": "POST /api/v1/limits",
    "POST /limits/pause": "POST /api/v1/queues/{queue}/pause",
    "POST /limits/resume": "POST /api/v1/queues/{queue}/resume",
    "GET /live": "GET /api/v1/events",
    "GET /system": "GET /api/v1/health",
    "GET /": "GET /api/v1/runs",
    "POST /bulk": "POST /api/v1/jobs",
    "POST /versions/default": "POST /api/v1/versions",
    "POST /new-schedule": "POST /api/v1/schedules",
    "POST /schedules/{schedule_id}/edit": "POST /api/v1/schedules/{schedule_id}",
}


@pytest.mark.parametrize("page", [page.action for page in PAGES if not page.public])
def test_a_page_asks_for_what_the_route_of_the_same_purpose_asks_for(page: str) -> None:
    method, _, path = page.partition(" ")
    if method == "GET" and f"POST {path}" in ACTIONS:  # it shows the form that is sent there
        assert ACTIONS[page].roles == ACTIONS[f"POST {path}"].roles
        assert not ACTIONS[page].audited
    else:
        assert ACTIONS[page] == ACTIONS[PAGE_TWINS.get(page, f"{method} /api/v1{path}")]
