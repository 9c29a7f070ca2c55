"""Signals: tell a run something, and see what it was told."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from kagzi.api.operations import SendSignal
from kagzi.api.workflows import SIGNALS_LISTED
from kagzi.core.run import RunStatus
from kagzi.core.signal import check_key
from kagzi.http.apart import apart
from kagzi.http.call import Call, Namespaced, Reply
from kagzi.http.fields import Key, Name
from kagzi.http.limits import ANSWER_BYTES
from kagzi.http.problems import naming
from kagzi.http.runs import run_id_of
from kagzi.ports.documents.runs import SignalDocument, signal_document

NULL: Final = b"null"


class SignalBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[Name, Meta(description="What the workflow waits for.")]
    value: Annotated[Raw, Meta(description="What it gets.")] = msgspec.field(default_factory=lambda: Raw(NULL))
    key: Annotated[
        Key | None, Meta(description="Makes a repeat harmless: a signal with the same key is the same signal.")
    ] = None


class SentSignal(Struct, frozen=True, kw_only=True):
    """A signal is stored; `repeated` if it was before, by a request with the same key."""

    run_id: str
    key: str
    seq: int
    status: RunStatus
    repeated: bool


async def send_signal(call: Call[Namespaced, SignalBody]) -> Reply:
    body = call.body
    with naming("key"):
        key = check_key(body.key, call.host.ids.token())
    run_id = await run_id_of(call, call.path["run_id"])
    answer = await call.engine.workflows.signal(
        SendSignal(namespace=call.namespace, run_id=run_id, name=body.name, value=bytes(body.value), key=key)
    )
    sent = SentSignal(run_id=answer.run_id, key=key, seq=answer.seq, status=answer.status, repeated=answer.repeated)
    return Reply(document=sent, status=200 if answer.repeated else 201, headers={})


class SignalsQuery(Namespaced, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Only those with a number above this one.")] = 0


class SignalPage(Struct, frozen=True, kw_only=True):
    """What a run was told, in the order of arrival: at most 1,000, and fewer of large ones. If there are `more`, they
    follow after the last `seq`."""

    signals: tuple[SignalDocument, ...]
    more: bool = False


async def list_signals(call: Call[SignalsQuery, None]) -> SignalPage:
    run_id = await run_id_of(call, call.path["run_id"])
    found = await call.engine.workflows.signals(call.namespace, run_id, after=call.query.after)
    total, many = 0, 0
    for signal in found:
        total += len(signal.value)
        if total > ANSWER_BYTES and many:
            break
        many += 1
    documents = await apart(total, lambda: tuple([signal_document(signal) for signal in found[:many]]))
    return SignalPage(signals=documents, more=many < len(found) or len(found) == SIGNALS_LISTED)
