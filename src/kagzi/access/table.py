"""The one table of who may do what. What is not in it is denied to everybody.

An action is an RPC by its path (`/kagzi.v1.WorkflowService/StartWorkflow`) or an HTTP route by its method and pattern
(`GET /api/v1/runs/{run_id}`). To add one, add a line below; a test compares the table with every RPC of the contract
and every route of the HTTP port, in both directions, and fails for one that is missing.

A role says how much, the key's namespace says where: calls are confined to it (`Caller.confine`). An action that
concerns more than one namespace by its nature is `everywhere`: keys of a single namespace cannot take it, whatever
their role. `audited` actions are changes a person or program makes to what others rely on; each leaves an entry in the
audit log. Starts and what workers do are not audited: the runs themselves are the record of those.

Workers may start and read runs, because steps do. They may not cancel or end runs they do not hold.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kagzi.core.key import Role

_LOOKING: Final = frozenset(Role)
_STARTING: Final = frozenset({Role.ADMIN, Role.CLIENT, Role.WORKER})
_CHANGING: Final = frozenset({Role.ADMIN, Role.CLIENT})
_DRIVING: Final = frozenset({Role.ADMIN, Role.WORKER})
_MANAGING: Final = frozenset({Role.ADMIN})


class Rule(Struct, frozen=True):
    roles: frozenset[Role]
    everywhere: bool = False  # needs a key that is not confined to one namespace
    audited: bool = False
    starts: bool = False  # counts against how fast runs may be started in a namespace
    reads: bool = False  # asks the database at length, and takes its turn at that (`shares.Turns`)

    @property
    def drives(self) -> bool:
        """Whether the action keeps leases alive or works under one: made to wait, it would come too late."""
        return self.roles is _DRIVING


_LOOK: Final = Rule(_LOOKING, reads=True)
_WATCH: Final = Rule(_LOOKING)  # without a read, or with one of a row and a long wait
_START: Final = Rule(_STARTING, starts=True)
_CHANGE: Final = Rule(_CHANGING, audited=True)
_REPEAT: Final = Rule(_CHANGING, audited=True, starts=True)
_SIGNAL: Final = Rule(_STARTING)  # not audited: the run's inbox is the record
_DRIVE: Final = Rule(_DRIVING)
_MANAGE: Final = Rule(_MANAGING, audited=True)
_MANAGE_ALL: Final = Rule(_MANAGING, everywhere=True, audited=True)
# Pages that ask before they change something. What they send is a route of its own.
_ASK_START: Final = Rule(_STARTING, reads=True)
_ASK_CHANGE: Final = Rule(_CHANGING, reads=True)
_ASK_MANAGE: Final = Rule(_MANAGING, reads=True)
_LOOK_AT_ALL: Final = Rule(_LOOKING, everywhere=True, reads=True)

_RPCS: Final[dict[str, dict[str, Rule]]] = {
    "WorkflowService": {
        "StartWorkflow": _START,
        "StartWorkflows": _START,
        "GetWorkflow": _LOOK,
        "GetWorkflowByExternalId": _LOOK,
        "ListWorkflows": _LOOK,
        "WaitWorkflow": _WATCH,
        "WaitWorkflows": _WATCH,
        "CancelWorkflow": _CHANGE,
        "RetryWorkflow": _REPEAT,
        "TerminateWorkflow": _CHANGE,
        "WakeWorkflow": _CHANGE,
        "SignalWorkflow": _SIGNAL,
        "ListSignals": _LOOK,
        "GetWorkflowValues": _LOOK,
    },
    "JobService": {
        "StartJob": _REPEAT,
        "PreviewJob": _ASK_CHANGE,
        "GetJob": _LOOK,
        "ListJobs": _LOOK,
        "CancelJob": _CHANGE,
        "DeleteWorkflow": _CHANGE,
    },
    "WorkerService": {
        "Register": _DRIVE,
        "Heartbeat": _DRIVE,
        "Deregister": _DRIVE,
        "PollTask": _DRIVE,
        "PollTasks": _DRIVE,
        "GetHistory": _DRIVE,
        "CommitBatch": _DRIVE,
        "WaitNews": _DRIVE,
        "ReadInbox": _DRIVE,
        "BeginStep": _DRIVE,
        "CompleteStep": _DRIVE,
        "FailStep": _DRIVE,
        "CompleteWorkflow": _DRIVE,
        "FailWorkflow": _DRIVE,
        "Sleep": _DRIVE,
        "SpawnChild": _DRIVE,
        "AwaitChild": _DRIVE,
    },
    "WorkflowScheduleService": {
        "CreateWorkflowSchedule": _CHANGE,
        "GetWorkflowSchedule": _LOOK,
        "ListWorkflowSchedules": _LOOK,
        "UpdateWorkflowSchedule": _CHANGE,
        "DeleteWorkflowSchedule": _CHANGE,
        "TriggerWorkflowSchedule": _REPEAT,
        "PauseWorkflowSchedule": _CHANGE,
        "ResumeWorkflowSchedule": _CHANGE,
        "ListScheduleRuns": _LOOK,
        "PreviewWorkflowSchedule": _LOOK,
        "BackfillWorkflowSchedule": _REPEAT,
        "ListScheduleSkips": _LOOK,
    },
    "NamespaceService": {
        "CreateNamespace": _MANAGE_ALL,
        "GetNamespace": _LOOK,
        "ListNamespaces": _LOOK_AT_ALL,
        "UpdateNamespace": _MANAGE,
        "EnableNamespace": _MANAGE_ALL,
        "DisableNamespace": _MANAGE_ALL,
    },
    # A stream of other calls, each of which is looked at by itself.
    "ExchangeService": {"Exchange": _WATCH},
    "AdminService": {
        "ListWorkers": _LOOK,
        "GetWorker": _LOOK,
        "GetStep": _LOOK,
        "ListSteps": _LOOK,
        "HealthCheck": _WATCH,
        "GetServerInfo": _WATCH,
        "GetStats": _LOOK,
        "DrainWorker": _MANAGE,
        "GetQueueDepth": _LOOK,
        "ListWorkflowTypes": _LOOK,
        "ListVersions": _LOOK,
        "GetWorkflowInterface": _LOOK,
        "GetWorkflowReport": _LOOK,
        "SetDefaultVersion": _MANAGE,
        "MoveWorkflows": _MANAGE,
        "MoveCheckedWorkflows": _MANAGE,
        "ListLimits": _LOOK,
        "GetSlotWait": _LOOK,
        "PauseClaims": _MANAGE,
        "ResumeClaims": _MANAGE,
        "SetLimit": _MANAGE,
        "ClearLimit": _MANAGE,
    },
}

# The routes of the HTTP port: "METHOD /pattern" as in its route table. Probes need no key and are not in here: they
# say nothing but whether this process lives and is ready.
_ROUTES: Final[dict[str, Rule]] = {
    "GET /api/v1/runs": _LOOK,
    "POST /api/v1/runs": _START,
    "GET /api/v1/runs/{run_id}": _LOOK,
    "GET /api/v1/runs/{run_id}/steps": _LOOK,
    "POST /api/v1/runs/{run_id}/cancel": _CHANGE,
    "POST /api/v1/runs/{run_id}/terminate": _CHANGE,
    "POST /api/v1/runs/{run_id}/wake": _CHANGE,
    "POST /api/v1/runs/{run_id}/signals": _SIGNAL,
    "GET /api/v1/runs/{run_id}/signals": _LOOK,
    "GET /api/v1/runs/{run_id}/values": _LOOK,
    "POST /api/v1/runs/{run_id}/retry": _REPEAT,
    "POST /api/v1/runs/{run_id}/rerun": _REPEAT,
    "POST /api/v1/runs/{run_id}/fork": _REPEAT,
    "POST /api/v1/runs/{run_id}/delete": _CHANGE,
    "GET /api/v1/jobs": _LOOK,
    "POST /api/v1/jobs": _REPEAT,
    "POST /api/v1/job-preview": _ASK_CHANGE,
    "GET /api/v1/jobs/{job_id}": _LOOK,
    "POST /api/v1/jobs/{job_id}/cancel": _CHANGE,
    "GET /api/v1/schedules": _LOOK,
    "POST /api/v1/schedules": _CHANGE,
    "GET /api/v1/schedules/{schedule_id}": _LOOK,
    "POST /api/v1/schedules/{schedule_id}": _CHANGE,
    "POST /api/v1/schedules/{schedule_id}/pause": _CHANGE,
    "POST /api/v1/schedules/{schedule_id}/resume": _CHANGE,
    "POST /api/v1/schedules/{schedule_id}/reset": _CHANGE,
    "POST /api/v1/schedules/{schedule_id}/trigger": _REPEAT,
    "POST /api/v1/schedules/{schedule_id}/backfill": _REPEAT,
    "POST /api/v1/schedules/{schedule_id}/delete": _CHANGE,
    "GET /api/v1/schedules/{schedule_id}/runs": _LOOK,
    "GET /api/v1/schedule-preview": _LOOK,
    "GET /api/v1/workers": _LOOK,
    "GET /api/v1/workers/{worker_id}": _LOOK,
    "POST /api/v1/workers/{worker_id}/drain": _MANAGE,
    "GET /api/v1/queues": _LOOK,
    "POST /api/v1/queues/{queue}/pause": _MANAGE,
    "POST /api/v1/queues/{queue}/resume": _MANAGE,
    "GET /api/v1/workflows": _LOOK,
    "GET /api/v1/workflows/{workflow}": _LOOK,
    "GET /api/v1/workflows/{workflow}/report": _LOOK,
    "POST /api/v1/workflows/{workflow}/pause": _MANAGE,
    "POST /api/v1/workflows/{workflow}/resume": _MANAGE,
    "GET /api/v1/limits": _LOOK,
    "POST /api/v1/limits": _MANAGE,
    "GET /api/v1/versions": _LOOK,
    "POST /api/v1/versions": _MANAGE,
    "POST /api/v1/versions/move": _MANAGE,
    "GET /api/v1/stats": _LOOK,
    "GET /api/v1/health": _WATCH,
    "GET /api/v1/server": _WATCH,
    "GET /api/v1/namespaces": _LOOK_AT_ALL,
    "POST /api/v1/namespaces": _MANAGE_ALL,
    "GET /api/v1/namespaces/{namespace}": _LOOK,
    "POST /api/v1/namespaces/{namespace}": _MANAGE,
    "POST /api/v1/namespaces/{namespace}/enable": _MANAGE_ALL,
    "POST /api/v1/namespaces/{namespace}/disable": _MANAGE_ALL,
    "POST /api/v1/namespaces/{namespace}/pause": _MANAGE,
    "POST /api/v1/namespaces/{namespace}/resume": _MANAGE,
    "GET /api/v1/events": _WATCH,
    "GET /api/v1/openapi.json": _WATCH,
    # Labels of metrics name every namespace.
    "GET /metrics": _LOOK_AT_ALL,
}

# The pages of the dashboard, in the same way. Whoever is not logged in sees the page to log in, and files of ours.
_PAGES: Final[dict[str, Rule]] = {
    "GET /": _LOOK,
    "GET /live": _WATCH,
    "GET /runs": _LOOK,
    "GET /runs/{run_id}": _LOOK,
    "GET /runs/{run_id}/step": _LOOK,
    "GET /runs/{run_id}/cancel": _ASK_CHANGE,
    "POST /runs/{run_id}/cancel": _CHANGE,
    "GET /runs/{run_id}/wake": _ASK_CHANGE,
    "POST /runs/{run_id}/wake": _CHANGE,
    "GET /runs/{run_id}/terminate": _ASK_CHANGE,
    "POST /runs/{run_id}/terminate": _CHANGE,
    "GET /runs/{run_id}/retry": _ASK_CHANGE,
    "POST /runs/{run_id}/retry": _REPEAT,
    "GET /runs/{run_id}/rerun": _ASK_CHANGE,
    "POST /runs/{run_id}/rerun": _REPEAT,
    "GET /runs/{run_id}/signal": _ASK_START,
    "POST /runs/{run_id}/signal": _SIGNAL,
    "GET /bulk": _ASK_CHANGE,
    "POST /bulk": _REPEAT,
    "GET /jobs": _LOOK,
    "GET /jobs/{job_id}": _LOOK,
    "GET /jobs/{job_id}/cancel": _ASK_CHANGE,
    "POST /jobs/{job_id}/cancel": _CHANGE,
    "GET /start": _ASK_START,
    "POST /start": _START,
    "GET /workflows": _LOOK,
    "GET /workflows/{workflow}": _LOOK,
    "GET /runs/{run_id}/fork": _ASK_CHANGE,
    "POST /runs/{run_id}/fork": _REPEAT,
    "GET /versions": _LOOK,
    "GET /versions/default": _ASK_MANAGE,
    "POST /versions/default": _MANAGE,
    "GET /versions/move": _ASK_MANAGE,
    "POST /versions/move": _MANAGE,
    "GET /new-schedule": _ASK_CHANGE,
    "POST /new-schedule": _CHANGE,
    "GET /schedules": _LOOK,
    "GET /schedules/{schedule_id}": _LOOK,
    "GET /schedules/{schedule_id}/edit": _ASK_CHANGE,
    "POST /schedules/{schedule_id}/edit": _CHANGE,
    "GET /schedules/{schedule_id}/delete": _ASK_CHANGE,
    "POST /schedules/{schedule_id}/delete": _CHANGE,
    "GET /schedules/{schedule_id}/pause": _ASK_CHANGE,
    "POST /schedules/{schedule_id}/pause": _CHANGE,
    "GET /schedules/{schedule_id}/resume": _ASK_CHANGE,
    "POST /schedules/{schedule_id}/resume": _CHANGE,
    "GET /schedules/{schedule_id}/trigger": _ASK_CHANGE,
    "POST /schedules/{schedule_id}/trigger": _REPEAT,
    "GET /queues": _LOOK,
    "GET /queues/{queue}/pause": _ASK_MANAGE,
    "POST /queues/{queue}/pause": _MANAGE,
    "GET /limits": _LOOK,
    "GET /limits/set": _ASK_MANAGE,
    "POST /limits/set": _MANAGE,
    "GET /limits/clear": _ASK_MANAGE,
    "POST /limits/clear": _MANAGE,
    "GET /limits/pause": _ASK_MANAGE,
    "POST /limits/pause": _MANAGE,
    "GET /limits/resume": _ASK_MANAGE,
    "POST /limits/resume": _MANAGE,
    "GET /queues/{queue}/resume": _ASK_MANAGE,
    "POST /queues/{queue}/resume": _MANAGE,
    "GET /workers": _LOOK,
    "GET /workers/{worker_id}": _LOOK,
    "GET /workers/{worker_id}/drain": _ASK_MANAGE,
    "POST /workers/{worker_id}/drain": _MANAGE,
    "GET /system": _WATCH,
}

ACTIONS: Final[dict[str, Rule]] = {
    **{f"/kagzi.v1.{service}/{rpc}": rule for service, rpcs in _RPCS.items() for rpc, rule in rpcs.items()},
    **_ROUTES,
    **_PAGES,
}
