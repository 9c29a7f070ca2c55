"""The stream of changes, as server-sent events.

    event: run       data: a RunEvent       something happened to a run
    event: schedule  data: a ScheduleEvent  something happened to a schedule
    event: queue     data: a QueueEvent     another server made work available in a queue
    event: resync    data: a ResyncEvent    something may have been missed: read again what you show

A comment every few seconds keeps proxies from hanging up. A reader that comes back with `Last-Event-ID` is told what it
has missed, or to read again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from kagzi.api.events import (
    Change,
    Event,
    Numbered,
    QueueChanged,
    RunChanged,
    ScheduleChange,
    ScheduleChanged,
    Subscription,
)
from kagzi.core.run import RunStatus
from kagzi.http.call import Call, Namespaced, Stream
from kagzi.http.fields import Name
from kagzi.http.limits import HEARTBEAT_SECONDS, RECONNECT_MILLISECONDS
from kagzi.http.problems import BadField, naming
from kagzi.http.runs import run_id_of
from kagzi.ports.documents.common import Moment, moment

_LONGEST_ID = 200


class EventsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: Annotated[
        Name | None,
        Meta(description="Only changes of this run, its steps included: its run id, or your own id of it."),
    ] = None


class RunEvent(Struct, frozen=True, kw_only=True):
    """Something happened to a run. What is null is not known to the server that tells it."""

    namespace: str
    run_id: str
    change: Change
    status: RunStatus | None
    workflow: str | None
    queue: str | None
    at: Moment | None


class ScheduleEvent(Struct, frozen=True, kw_only=True):
    """Something happened to a schedule. `count` is how many runs were started, or firings skipped; else it is null."""

    namespace: str
    schedule_id: str
    change: ScheduleChange
    count: int | None
    at: Moment | None


class QueueEvent(Struct, frozen=True, kw_only=True):
    namespace: str
    queue: str
    at: Moment | None


class ResyncEvent(Struct, frozen=True, kw_only=True):
    at: Moment | None


async def stream_events(call: Call[EventsQuery, None]) -> Stream:
    run_id = call.query.run_id
    if run_id is not None:
        with naming("run_id"):
            run_id = await run_id_of(call, run_id)
            await call.engine.workflows.get(call.namespace, run_id)
    after = call.headers.get("last-event-id")
    if after is not None and len(after) > _LONGEST_ID:
        raise BadField("Last-Event-ID", "Last-Event-ID is not one of ours")
    reader = call.engine.events.subscribe(namespace=call.namespace, run_id=run_id, after=after)
    return Stream(parts=_parts(call, reader), close=reader.close)


async def _parts(call: Call[EventsQuery, None], reader: Subscription) -> AsyncIterator[bytes]:
    # So that the reader knows at once that it is connected, and comes back soon if it is not any more.
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n".encode()
    closing = call.host.closing
    while not closing.is_set():
        told: Sequence[Numbered] = await closing.until(lambda: reader.next(HEARTBEAT_SECONDS), ())
        if closing.is_set():
            return
        yield b"".join(_written(each) for each in told) if told else b": \n\n"


def _written(numbered: Numbered) -> bytes:
    name, document = _document(numbered.event)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        numbered.event_id.encode(),
        name.encode(),
        msgspec.json.encode(document),
    )


def _document(event: Event) -> tuple[str, Struct]:
    if isinstance(event, RunChanged):
        return "run", RunEvent(
            namespace=event.namespace,
            run_id=event.run_id,
            change=event.change,
            status=event.status,
            workflow=event.workflow,
            queue=event.queue,
            at=moment(event.at),
        )
    if isinstance(event, ScheduleChanged):
        return "schedule", ScheduleEvent(
            namespace=event.namespace,
            schedule_id=event.schedule_id,
            change=event.change,
            count=event.count,
            at=moment(event.at),
        )
    if isinstance(event, QueueChanged):
        return "queue", QueueEvent(namespace=event.namespace, queue=event.queue, at=moment(event.at))
    return "resync", ResyncEvent(at=moment(event.at))
