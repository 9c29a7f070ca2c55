"""Every page, once. Who may see and send what is in `kagzi.access.table`, by the same names."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from kagzi.dashboard import (
    actions,
    asking,
    assets,
    bulk,
    jobs,
    limits,
    login,
    overview,
    run,
    runs,
    schedule_forms,
    schedules,
    start,
    system,
    versions,
    workers,
    workflows,
)
from kagzi.http.call import NoQuery
from kagzi.http.events import EventsQuery, stream_events
from kagzi.http.routes import Handle, Route

_HTML: Final = "text/html"


def _show(path: str, handle: Handle, query: type[Struct], **more: Any) -> Route:
    return Route(
        method="GET", path=path, handle=handle, query=query, summary=path, about=None, **{"answer": _HTML} | more
    )


def _send(path: str, handle: Handle, body: type[Struct], **more: Any) -> Route:
    return Route(method="POST", path=path, handle=handle, body=body, summary=path, about=None, answer=_HTML, **more)


def _ask(path: str, action: Any, query: type[Struct] = asking.AskQuery) -> tuple[Route, Route]:
    return _show(path, action.ask, query), _send(path, action.act, action.form)


_RUN: Final = "/runs/{run_id}"

PAGES: Final[tuple[Route, ...]] = (
    _show("/", overview.show_overview, system.PlainQuery),
    _show("/runs", runs.show_runs, runs.RunsQuery),
    _show(_RUN, run.show_run, run.RunQuery),
    _show(f"{_RUN}/step", run.show_step, run.StepQuery),
    *_ask(f"{_RUN}/cancel", actions.CANCEL),
    *_ask(f"{_RUN}/terminate", actions.TERMINATE),
    *_ask(f"{_RUN}/wake", actions.WAKE),
    *_ask(f"{_RUN}/retry", actions.RETRY),
    *_ask(f"{_RUN}/rerun", actions.RERUN),
    *_ask(f"{_RUN}/signal", actions.SIGNAL),
    *_ask(f"{_RUN}/fork", actions.FORK, actions.ForkQuery),
    _show("/bulk", bulk.ask_bulk, bulk.BulkQuery),
    _send("/bulk", bulk.act_on_many, bulk.BulkForm),
    _show("/jobs", jobs.show_jobs, jobs.JobsQuery),
    _show("/jobs/{job_id}", jobs.show_job, system.PlainQuery),
    *_ask("/jobs/{job_id}/cancel", jobs.CANCEL),
    _show("/start", start.ask_start, start.StartQuery),
    _send("/start", start.start, start.StartForm),
    _show("/workflows", workflows.show_workflows, system.PlainQuery),
    _show("/workflows/{workflow}", workflows.show_workflow, system.PlainQuery),
    _show("/schedules", schedules.show_schedules, schedules.SchedulesQuery),
    _show("/schedules/{schedule_id}", schedules.show_schedule, schedules.ScheduleQuery),
    *_ask("/schedules/{schedule_id}/pause", schedules.PAUSE),
    *_ask("/schedules/{schedule_id}/resume", schedules.RESUME),
    *_ask("/schedules/{schedule_id}/trigger", schedules.TRIGGER),
    _show("/new-schedule", schedule_forms.ask_new_schedule, schedule_forms.ScheduleFormQuery),
    _send("/new-schedule", schedule_forms.create_schedule, schedule_forms.ScheduleForm),
    _show("/schedules/{schedule_id}/edit", schedule_forms.ask_edit_schedule, schedule_forms.ScheduleFormQuery),
    _send("/schedules/{schedule_id}/edit", schedule_forms.edit_schedule, schedule_forms.ScheduleForm),
    *_ask("/schedules/{schedule_id}/delete", schedule_forms.DELETE),
    _show("/versions", versions.show_versions, versions.VersionsQuery),
    *_ask("/versions/default", versions.DEFAULT, versions.VersionQuery),
    *_ask("/versions/move", versions.MOVE, versions.VersionQuery),
    _show("/queues", workers.show_queues, system.PlainQuery),
    *_ask("/queues/{queue}/pause", workers.PAUSE),
    *_ask("/queues/{queue}/resume", workers.RESUME),
    _show("/limits", limits.show_limits, system.PlainQuery),
    *_ask("/limits/set", limits.SET, limits.LimitQuery),
    *_ask("/limits/clear", limits.CLEAR, limits.LimitQuery),
    *_ask("/limits/pause", limits.PAUSE, limits.LimitQuery),
    *_ask("/limits/resume", limits.RESUME, limits.LimitQuery),
    _show("/workers", workers.show_workers, workers.WorkersQuery),
    _show("/workers/{worker_id}", workers.show_worker, workers.WorkerQuery),
    *_ask("/workers/{worker_id}/drain", workers.DRAIN),
    _show("/system", system.show_system, system.PlainQuery),
    _show("/live", stream_events, EventsQuery, answer="text/event-stream", streams=True),
    _show("/login", login.ask_login, login.LoginQuery, public=True),
    _send("/login", login.log_in, login.LoginForm, public=True, query=NoQuery),
    _send("/logout", login.log_out, login.LogoutForm, public=True, query=NoQuery),
    _show("/static/{file}", assets.show_asset, assets.AssetQuery, public=True, answer="application/octet-stream"),
)
