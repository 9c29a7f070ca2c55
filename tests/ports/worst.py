"""The worst inputs that are accepted, made from the limit of each field, and a server's world that is as bad."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

import kagzi
from kagzi import Kagzi, Retry
from kagzi.api.jobs import StartJob
from kagzi.api.operations import SendSignal, StartRun
from kagzi.api.schedules import CreateSchedule
from kagzi.api.workers import Registration
from kagzi.api.workflows import RunFilter
from kagzi.clock import SystemClock
from kagzi.core.flow import Scope
from kagzi.core.job import JobAction
from kagzi.core.limits import NAME_CHARACTERS, PAYLOAD_BYTES
from kagzi.core.run_value import MOST_VALUES, VALUE_BYTES
from kagzi.core.tags import MOST_TAGS, TAG_CHARACTERS
from kagzi.core.versions import SCHEMA_BYTES, WorkflowInterface
from kagzi.core.worker import WorkflowType
from kagzi.dashboard.text import EDITABLE_BYTES
from kagzi.engine.local import LocalEngine
from kagzi.ids import RandomIds

IDS = RandomIds(SystemClock().now)
NAME: Final = "ü" * NAME_CHARACTERS
TAGS: Final = {f"{number}" + "t" * (TAG_CHARACTERS - 1): "v" * TAG_CHARACTERS for number in range(MOST_TAGS)}
SPARSE: Final = "0 0 29 2 */7"  # fires once in 28 years


def deep(size: int, levels: int = 400) -> bytes:
    """Returns JSON of at most this size that costs most to read and to lay out."""
    unit = b"[" * levels + b"]" * levels
    many = max(1, (size - 2) // (len(unit) + 1) - 1)
    return b"[" + b",".join([unit] * many) + b"]"


def flat(size: int) -> bytes:
    return b"[" + b",".join([b'{"a":[]}'] * (size // 9 - 1)) + b"]"


PAYLOAD: Final = deep(PAYLOAD_BYTES)
OBJECTS: Final = flat(PAYLOAD_BYTES)
# By the name of a field, wherever it is. Other texts are as long as they may be, other numbers as large.
FIELDS: Final[dict[str, Any]] = {
    "count": 100,
    "created_after": "1970-01-01T00:00:00Z",
    "created_before": "2999-01-01T00:00:00Z",
    "cron": SPARSE,
    "deadline": "2999-01-01T00:00:00Z",
    "force": True,
    "from_step": None,
    "grace": "1 day",
    "id_prefix": None,
    "input": msgspec.Raw(PAYLOAD),
    "key": None,
    "name": NAME,
    "next": "/" + "n" * 1000,
    "of": "search",
    "only": "failed",
    "parent": None,
    "period": "1 day",
    "raw": True,
    "retry": {
        "attempts": 100,
        "first": "1s",
        "cap": "1 day",
        "give_up_on": [f"a.B{n}" + "c" * 200 for n in range(100)],
    },
    "schedule": None,
    "since": "1970-01-01T00:00:00Z",
    "step": "large",
    "tag": next(f"{name}={value}" for name, value in TAGS.items()),
    "tags": TAGS,
    "timeout": "1 day",
    "tz": "Europe/Berlin",
    "until": "1971-01-01T00:00:00Z",
    "value": msgspec.Raw(PAYLOAD),
}
# What says which one or which page is meant, or does not go together with the rest.
_OTHERS: Final = """
    after arg burst children confirm created_by debounce delay done dry_run everything fields fresh id input_base64
    jitter job_id keep_id key_rate like many namespace next_fire_at on_failure on_failure_queue others page rate run
    run_id schedule_id search signal start_at wait
"""
LEFT_OUT: Final = frozenset(_OTHERS.split())
_ZONE: Final = {"tz": "Europe/" + "x" * 57}  # is compared with others
_JOB: Final = {"from_version": None, "version": None, "runs": {"workflow": NAME[:-1], "queue": NAME, "tags": TAGS}}
# Calls besides, and what they send in place of the worst of each field or besides it; None: nothing.
MORE: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "GET /runs": ({"since": "30d"},),
    "GET /bulk": ({"since": "30d"},),
    "GET /new-schedule": ({"input": None}, {"input": None} | _ZONE),
    "GET /schedules/{schedule_id}/edit": ({"input": None},),
    "GET /start": ({"version": None}, {"like": "{editable}"}, {"like": "{pending}"}),
    "GET /versions/default": ({"workflow": "{workflow}", "version": "{version}"},),
    "GET /versions/move": ({"workflow": "{workflow}", "version": "{version}"},),
    "GET /api/v1/versions": ({},),
    "GET /api/v1/workflows/{workflow}": ({"version": None},),
    "GET /api/v1/runs/{run_id}/steps": ({"payloads": True, "name": None},),
    "GET /api/v1/schedule-preview": ({}, _ZONE),
    "POST /api/v1/limits": ({"queue": None},),
    "POST /api/v1/jobs": (_JOB,),
    "POST /api/v1/job-preview": (_JOB,),
    "POST /api/v1/runs/{run_id}/fork": ({"version": None},),
    "POST /runs/{run_id}/fork": ({"version": None},),
    "POST /api/v1/namespaces": ({"namespace": "n" * NAME_CHARACTERS},),
    "POST /api/v1/runs": ({}, {"input": msgspec.Raw(OBJECTS)}),
    "POST /api/v1/schedules": ({"name": "other"}, {"name": None} | _ZONE),
    "POST /api/v1/versions": ({"workflow": "{workflow}", "version": "{version}"},),
    "POST /api/v1/versions/move": ({"from_version": "1"},),
    "POST /bulk": ({"run": "{editable}", "fresh": "{fresh}"},),
    "POST /limits/set": ({"rate": "1000/1 day", "scope": "queue", "key_concurrency": None},),
    "POST /limits/clear": ({"scope": "queue"},),
    "POST /limits/pause": ({"scope": "queue"},),
    "POST /limits/resume": ({"scope": "queue"},),
    "POST /new-schedule": ({"name": "another", "catchup": "10", "overlap": "allow"},),
    "POST /schedules/{schedule_id}/edit": ({"name": None, "catchup": "10", "overlap": "allow"},),
    "POST /versions/default": ({"workflow": "{workflow}", "version": "{version}"},),
    "POST /versions/move": ({"workflow": "{workflow}", "from_version": "1", "to_version": "{version}"},),
}
# What is refused although it is the worst, and how: computing for long is no way to refuse either.
REFUSED: Final = {
    "GET /api/v1/schedule-preview": {400},
    "POST /api/v1/schedules": {400},
}


class World:
    """What the worst of callers has stored, each thing as large as it may be."""

    def __init__(self) -> None:
        self.ended = ""  # the run with everything
        self.editable = ""  # one whose input just fits into a field
        self.pending = ""  # one that waits, with an inbox
        self.schedule = ""
        self.other_schedule = ""
        self.worker = ""
        self.job = ""
        self.workflow = "worst"
        self.fresh = IDS.run_id()
        self.namespace = ""
        self.version = NAME[:100]


def _app(url: str) -> Kagzi:
    app = Kagzi(url)
    lines = "\n".join("y" * 60 for _ in range(100))

    @app.step(retry=Retry(attempts=1))
    async def large(number: int, given: Any) -> Any:
        return msgspec.Raw(PAYLOAD) if number == 0 else number

    @app.workflow(name="worst", retry=Retry(attempts=1))
    async def worst(given: Any) -> Any:
        for number in range(MOST_VALUES):
            kagzi.set_value(f"{number}" + "n" * 200, "v" * (VALUE_BYTES - 100))
        await asyncio.gather(*[large(number, given if number == 0 else None) for number in range(600)])
        raise ValueError(lines + "z" * 2_000)

    return app


async def furnish(engine: LocalEngine, url: str) -> World:
    world = World()
    app = _app(url)
    async with app, app.worker(concurrency=1):
        started = await engine.workflows.start(_start(b"[null]", workflow="worst"))
        world.ended = started.run_id
        await engine.workflows.wait("default", started.run_id, 60_000_000)
    world.editable = (await engine.workflows.start(_start(flat(EDITABLE_BYTES)))).run_id
    world.pending = (await engine.workflows.start(_start(PAYLOAD))).run_id
    for begin in range(0, 1000, 250):
        await asyncio.gather(*[engine.workflows.signal(_signal(world, number)) for number in range(begin, begin + 250)])
    for _ in range(100):
        await engine.workflows.start(_start(b"[]", external_id=IDS.token() + NAME[:150]))
    schema = schema_of_many()
    await engine.workers.register(
        Registration(
            worker_id=IDS.run_id(),
            namespace="default",
            queues=("q",),
            types=tuple([WorkflowType(f"{number}" + "t" * 100) for number in range(1000)]),
            hostname="h" * 250,
            pid=1,
            version="v",
            concurrency=10,
        )
    )
    for number in range(25):
        name = f"{number}" + "w" * 200
        worker = Registration(
            worker_id=IDS.run_id(),
            namespace="default",
            queues=(NAME, f"{number}" + "q" * 250),
            types=(WorkflowType(name, NAME[:100]),),
            hostname="h" * 250,
            pid=1,
            version="v",
            concurrency=10,
            interfaces=(WorkflowInterface(workflow_type=name, version=NAME[:100], input_schema=schema, summary="s"),),
        )
        await engine.workers.register(worker)
        world.worker, world.workflow = worker.worker_id, name
        created = await engine.schedules.create(
            CreateSchedule(
                namespace="default",
                schedule_id=IDS.run_id(),
                name=f"{number}" + "n" * 250,
                workflow_type=name,
                task_queue=NAME,
                cron_expr=SPARSE,
                timezone="Europe/Berlin",
                input=PAYLOAD if number < 3 else flat(EDITABLE_BYTES),
                tags=TAGS,
            )
        )
        world.other_schedule, world.schedule = world.schedule, created.schedule_id
        await engine.limits.set("default", Scope.QUEUE, f"{number}" + "q" * 250, concurrency=1)
        made = await engine.namespaces.create(f"{number}" + "m" * 250)
        world.namespace = made.namespace
        job = await engine.jobs.start(
            StartJob(
                namespace="default",
                job_id=IDS.run_id(),
                action=JobAction.CANCEL,
                filter=RunFilter(namespace="default", workflow_type=NAME[:-1], task_queue=NAME, tags=TAGS),
                created_by=NAME,
            )
        )
        world.job = job.job_id
    return world


def _signal(world: World, number: int) -> SendSignal:
    value = PAYLOAD if number < 2 else b'"' + b"s" * 200 + b'"'
    return SendSignal(namespace="default", run_id=world.pending, name=NAME, value=value, key=f"{number}")


def _start(input: bytes, workflow: str = NAME, external_id: str | None = None) -> StartRun:
    return StartRun(
        namespace="default",
        run_id=IDS.run_id(),
        workflow_type=workflow,
        task_queue="default" if workflow == "worst" else NAME,
        external_id=external_id,
        input=input,
        tags=TAGS,
    )


def schema_of_many() -> str:
    """Returns what 100 parameters take, as large as a schema may be."""
    many = 100
    each = {"type": "string", "description": "d" * (SCHEMA_BYTES // many - 100)}
    return msgspec.json.encode({"type": "object", "properties": {f"p{n}": each for n in range(many)}}).decode()
