"""Every route of the HTTP port, once.

The application, the check of `kagzi.access.table` (its actions are `Route.action`) and the OpenAPI document are made
from this list. To add a route: a line here, a line in the access table, and a test sees that both are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

from msgspec import Struct

from kagzi.http import (
    endings,
    events,
    flow,
    jobs,
    namespaces,
    openapi,
    runs,
    schedules,
    signals,
    starts,
    system,
    values,
    versions,
    workers,
)
from kagzi.http.call import Call, Namespaced, NoQuery, NothingBody, Result, Text
from kagzi.ports.documents.jobs import JobDocument
from kagzi.ports.documents.limits import LimitDocument
from kagzi.ports.documents.reports import ReportDocument
from kagzi.ports.documents.runs import RunDocument
from kagzi.ports.documents.schedules import ScheduleDocument
from kagzi.ports.documents.system import HealthDocument, NamespaceDocument
from kagzi.ports.documents.versions import InterfaceDocument
from kagzi.ports.documents.workers import WorkerDocument

API: Final = "/api/v1"

Handle = Callable[[Any], Awaitable[Result]]


class Route(Struct, frozen=True, kw_only=True):
    """`answer` is the document of a success with this `status`; `also` another status with the same document.

    `about` names the group in the OpenAPI document, None: not in it. `public` routes need no key, those that answer
    `alone` no database. Pages are routes, too: their body is a form, their key comes with a session, their answers are
    HTML (`kagzi.http.pages`).
    """

    method: str
    path: str
    summary: str
    handle: Handle
    about: str | None
    query: type[Struct] = Namespaced
    body: type[Struct] | None = None
    answer: type[Struct] | str  # or a media type
    status: int = 200
    also: int | None = None
    public: bool = False
    alone: bool = False
    streams: bool = False

    @property
    def action(self) -> str:
        """As the access table names it."""
        return f"{self.method} {self.path}"

    @property
    def operation(self) -> str:
        return self.handle.__name__


async def openapi_document(call: Call[NoQuery, None]) -> Text:  # noqa: ARG001
    return Text(await asyncio.to_thread(_document), "application/json")


@cache
def _document() -> bytes:
    return openapi.document(ROUTES)


def _get(path: str, handle: Handle, answer: type[Struct] | str, summary: str, **more: Any) -> Route:
    return Route(method="GET", path=path, handle=handle, answer=answer, summary=summary, **more)


def _post(path: str, handle: Handle, body: type[Struct], answer: type[Struct], summary: str, **more: Any) -> Route:
    return Route(method="POST", path=path, handle=handle, body=body, answer=answer, summary=summary, **more)


_RUN: Final = f"{API}/runs/{{run_id}}"
_SCHEDULE: Final = f"{API}/schedules/{{schedule_id}}"
_NAMESPACE: Final = f"{API}/namespaces/{{namespace}}"

ROUTES: Final[tuple[Route, ...]] = (
    # Probes.
    _get("/livez", system.livez, system.Alive, "Whether the process lives", about="probes", query=NoQuery, public=True),
    _get(
        "/readyz",
        system.readyz,
        system.Readiness,
        "Whether requests should be sent here",
        about="probes",
        query=NoQuery,
        also=503,
        public=True,
    ),
    _get("/metrics", system.metrics, "text/plain", "Metrics for Prometheus", about="probes", query=NoQuery, alone=True),
    # Runs.
    _get(f"{API}/runs", runs.list_runs, runs.RunPage, "List runs, newest first", about="runs", query=runs.RunsQuery),
    _post(
        f"{API}/runs",
        starts.start_run,
        starts.StartBody,
        starts.StartedRun,
        "Start a run",
        about="runs",
        status=201,
        also=200,
    ),
    _get(_RUN, runs.get_run, RunDocument, "Get a run, or wait for its end", about="runs", query=runs.RunQuery),
    _get(f"{_RUN}/steps", runs.list_steps, runs.StepPage, "List a run's steps", about="runs", query=runs.StepsQuery),
    _post(
        f"{_RUN}/signals",
        signals.send_signal,
        signals.SignalBody,
        signals.SentSignal,
        "Tell a run something",
        about="runs",
        status=201,
        also=200,
    ),
    _get(
        f"{_RUN}/signals",
        signals.list_signals,
        signals.SignalPage,
        "List what a run was told",
        about="runs",
        query=signals.SignalsQuery,
    ),
    _get(
        f"{_RUN}/values",
        values.get_values,
        values.RunValues,
        "Get what a run says about itself, and how far it has come",
        about="runs",
    ),
    _post(f"{_RUN}/cancel", endings.cancel, endings.CancelBody, endings.Ending, "Ask a run to end", about="runs"),
    _post(
        f"{_RUN}/terminate", endings.terminate, endings.TerminateBody, endings.Ending, "End a run at once", about="runs"
    ),
    _post(f"{_RUN}/wake", endings.wake, endings.WakeBody, endings.Woken, "End the sleep of a run", about="runs"),
    _post(
        f"{_RUN}/retry",
        endings.retry,
        endings.RepeatBody,
        starts.StartedRun,
        "Start a finished run again, keeping the steps that completed",
        about="runs",
        status=201,
        also=200,
    ),
    _post(
        f"{_RUN}/rerun",
        endings.rerun,
        endings.RepeatBody,
        starts.StartedRun,
        "Start a finished run again from scratch",
        about="runs",
        status=201,
        also=200,
    ),
    _post(
        f"{_RUN}/fork",
        endings.fork,
        endings.ForkBody,
        starts.StartedRun,
        "Start a new run that goes on from a chosen step of this one",
        about="runs",
        status=201,
        also=200,
    ),
    # Schedules.
    _post(
        f"{API}/runs/{{run_id}}/delete",
        jobs.delete_run,
        NothingBody,
        jobs.DeletedRun,
        "Delete a finished run and everything that is kept of it",
        about="runs",
    ),
    _get(f"{API}/jobs", jobs.list_jobs, jobs.JobPage, "List jobs, newest first", about="jobs", query=jobs.JobsQuery),
    _post(
        f"{API}/jobs",
        jobs.start_job,
        jobs.StartJobBody,
        JobDocument,
        "Do something to many runs, in the background",
        status=201,
        about="jobs",
    ),
    _post(
        f"{API}/job-preview",
        jobs.preview_job,
        jobs.StartJobBody,
        jobs.PreviewDocument,
        "Which runs a job would find; changes nothing",
        about="jobs",
    ),
    _get(f"{API}/jobs/{{job_id}}", jobs.get_job, JobDocument, "Look how far a job is", about="jobs"),
    _post(
        f"{API}/jobs/{{job_id}}/cancel",
        jobs.cancel_job,
        NothingBody,
        JobDocument,
        "End a job",
        about="jobs",
    ),
    _get(
        f"{API}/schedules",
        schedules.list_schedules,
        schedules.SchedulePage,
        "List schedules, newest first",
        about="schedules",
        query=schedules.SchedulesQuery,
    ),
    _post(
        f"{API}/schedules",
        schedules.create_schedule,
        schedules.CreateScheduleBody,
        ScheduleDocument,
        "Make a schedule",
        about="schedules",
        status=201,
    ),
    _get(_SCHEDULE, schedules.get_schedule, schedules.ScheduleWithSkips, "Get a schedule", about="schedules"),
    _post(
        _SCHEDULE,
        schedules.update_schedule,
        schedules.UpdateScheduleBody,
        ScheduleDocument,
        "Change a schedule",
        about="schedules",
    ),
    _post(
        f"{_SCHEDULE}/pause",
        schedules.pause_schedule,
        schedules.PauseBody,
        ScheduleDocument,
        "Fire nothing until resumed",
        about="schedules",
    ),
    _post(
        f"{_SCHEDULE}/resume",
        schedules.resume_schedule,
        NothingBody,
        ScheduleDocument,
        "Fire again",
        about="schedules",
    ),
    _post(
        f"{_SCHEDULE}/reset",
        schedules.reset_schedule,
        NothingBody,
        ScheduleDocument,
        "Let what code declares count again",
        about="schedules",
    ),
    _post(
        f"{_SCHEDULE}/trigger",
        schedules.trigger_schedule,
        schedules.TriggerBody,
        schedules.TriggeredRun,
        "Start a run now, beside the plan",
        about="schedules",
        status=201,
    ),
    _post(
        f"{_SCHEDULE}/backfill",
        schedules.backfill_schedule,
        schedules.BackfillBody,
        schedules.BackfilledRuns,
        "Start runs for firings of a time that has passed",
        about="schedules",
    ),
    _post(
        f"{_SCHEDULE}/delete",
        schedules.delete_schedule,
        NothingBody,
        schedules.DeletedSchedule,
        "Remove a schedule; its runs stay",
        about="schedules",
    ),
    _get(
        f"{_SCHEDULE}/runs",
        schedules.list_schedule_runs,
        runs.RunPage,
        "List the runs of a schedule, newest first",
        about="schedules",
        query=schedules.ScheduleRunsQuery,
    ),
    _get(
        f"{API}/schedule-preview",
        schedules.preview_schedule,
        schedules.Preview,
        "When an expression fires next",
        about="schedules",
        query=schedules.PreviewQuery,
    ),
    # Workers and queues.
    _get(
        f"{API}/workers",
        workers.list_workers,
        workers.WorkerPage,
        "List workers, newest first",
        about="workers",
        query=workers.WorkersQuery,
    ),
    _get(f"{API}/workers/{{worker_id}}", workers.get_worker, WorkerDocument, "Get a worker", about="workers"),
    _post(
        f"{API}/workers/{{worker_id}}/drain",
        workers.drain_worker,
        NothingBody,
        WorkerDocument,
        "Ask a worker to finish what it has and take nothing new",
        about="workers",
    ),
    _get(f"{API}/queues", workers.list_queues, workers.QueueList, "List queues and what waits there", about="workers"),
    _post(
        f"{API}/queues/{{queue}}/pause",
        flow.pause_queue,
        flow.PauseClaimsBody,
        LimitDocument,
        "Hand out no run of a queue",
        about="workers",
    ),
    _post(
        f"{API}/queues/{{queue}}/resume",
        flow.resume_queue,
        NothingBody,
        LimitDocument,
        "Hand out the runs of a queue again",
        about="workers",
    ),
    _get(f"{API}/limits", flow.list_limits, flow.LimitList, "List what holds runs back", about="workers"),
    _post(
        f"{API}/limits",
        flow.set_limit,
        flow.LimitBody,
        LimitDocument,
        "Limit how many runs of a queue or a workflow run at once",
        about="workers",
    ),
    # How much there is.
    _get(f"{API}/workflows", system.list_workflows, system.WorkflowList, "List workflows with runs", about="system"),
    _get(
        f"{API}/workflows/{{workflow}}",
        versions.get_interface,
        InterfaceDocument,
        "Show what a workflow is for and what it takes",
        about="system",
        query=versions.InterfaceQuery,
    ),
    _get(
        f"{API}/workflows/{{workflow}}/report",
        versions.get_report,
        ReportDocument,
        "Show how the newest runs of a workflow have done",
        about="system",
    ),
    _post(
        f"{API}/workflows/{{workflow}}/pause",
        flow.pause_workflow,
        flow.PauseClaimsBody,
        LimitDocument,
        "Hand out no run of a workflow",
        about="system",
    ),
    _post(
        f"{API}/workflows/{{workflow}}/resume",
        flow.resume_workflow,
        NothingBody,
        LimitDocument,
        "Hand out the runs of a workflow again",
        about="system",
    ),
    _get(
        f"{API}/versions",
        versions.list_versions,
        versions.VersionList,
        "List versions of workflows and what depends on them",
        about="system",
        query=versions.VersionsQuery,
    ),
    _post(
        f"{API}/versions",
        versions.set_default_version,
        versions.DefaultVersionBody,
        versions.VersionList,
        "Choose the version that starts get which name none",
        about="system",
    ),
    _post(
        f"{API}/versions/move",
        versions.move_runs,
        versions.MoveBody,
        versions.Moved,
        "Have runs that wait or sleep go on in another version",
        about="system",
    ),
    _get(f"{API}/stats", system.get_stats, system.Stats, "Count runs and workers", about="system"),
    _get(
        f"{API}/health", system.get_health, HealthDocument, "How well all is", about="system", query=NoQuery, alone=True
    ),
    _get(f"{API}/server", system.get_server, system.ServerInfo, "What answers here", about="system", query=NoQuery),
    # Namespaces.
    _get(
        f"{API}/namespaces",
        namespaces.list_namespaces,
        namespaces.NamespacePage,
        "List namespaces",
        about="namespaces",
        query=namespaces.NamespacesQuery,
    ),
    _post(
        f"{API}/namespaces",
        namespaces.create_namespace,
        namespaces.CreateNamespaceBody,
        NamespaceDocument,
        "Create a namespace",
        about="namespaces",
        query=NoQuery,
        status=201,
    ),
    _get(_NAMESPACE, namespaces.get_namespace, NamespaceDocument, "Get a namespace", about="namespaces", query=NoQuery),
    _post(
        _NAMESPACE,
        namespaces.update_namespace,
        namespaces.UpdateNamespaceBody,
        NamespaceDocument,
        "Change what a namespace is called",
        about="namespaces",
        query=NoQuery,
    ),
    _post(
        f"{_NAMESPACE}/enable",
        namespaces.enable_namespace,
        NothingBody,
        NamespaceDocument,
        "Let runs be started in a namespace",
        about="namespaces",
        query=NoQuery,
    ),
    _post(
        f"{_NAMESPACE}/disable",
        namespaces.disable_namespace,
        NothingBody,
        NamespaceDocument,
        "Start no more runs in a namespace",
        about="namespaces",
        query=NoQuery,
    ),
    _post(
        f"{_NAMESPACE}/pause",
        flow.pause_namespace,
        flow.PauseClaimsBody,
        LimitDocument,
        "Hand out no run of a namespace",
        about="namespaces",
        query=NoQuery,
    ),
    _post(
        f"{_NAMESPACE}/resume",
        flow.resume_namespace,
        NothingBody,
        LimitDocument,
        "Hand out the runs of a namespace again",
        about="namespaces",
        query=NoQuery,
    ),
    # Changes, and this document.
    _get(
        f"{API}/events",
        events.stream_events,
        "text/event-stream",
        "Follow what happens to runs",
        about="events",
        query=events.EventsQuery,
        streams=True,
    ),
    _get(f"{API}/openapi.json", openapi_document, "application/json", "This document", about="system", query=NoQuery),
)
