"""Signals: messages into core and api, and back."""

from __future__ import annotations

from kagzi._proto.v1 import worker_pb2, workflow_pb2
from kagzi.api.operations import SendSignal, SignalAnswer
from kagzi.api.workers import Inbox, RunNews
from kagzi.core.signal import Signal
from kagzi.rpc.convert.common import NULL, payload_from_bytes, payload_to_bytes
from kagzi.rpc.convert.runs import either_status, exact_status, namespace_of
from kagzi.rpc.convert.work import step_from_record, step_to_record

pb = workflow_pb2


def send_from_wire(request: pb.SignalWorkflowRequest, made_key: str) -> SendSignal:
    return SendSignal(
        namespace=namespace_of(request.namespace),
        run_id=request.run_id,
        external_id=request.external_id or None,
        name=request.name,
        value=payload_to_bytes(request.value) or NULL,
        key=request.key or made_key,
    )


def send_to_wire(signal: SendSignal) -> pb.SignalWorkflowRequest:
    return pb.SignalWorkflowRequest(
        namespace=signal.namespace,
        run_id=signal.run_id,
        external_id=signal.external_id or "",
        name=signal.name,
        value=payload_from_bytes(signal.value),
        key=signal.key,
    )


def answer_to_wire(answer: SignalAnswer, key: str) -> pb.SignalWorkflowResponse:
    return pb.SignalWorkflowResponse(
        run_id=answer.run_id,
        seq=answer.seq,
        status=exact_status(answer.status),
        repeated=answer.repeated,
        key=key,
    )


def answer_from_wire(answer: pb.SignalWorkflowResponse) -> SignalAnswer:
    return SignalAnswer(
        run_id=answer.run_id,
        seq=answer.seq,
        status=either_status(answer.status, answer.status),
        repeated=answer.repeated,
    )


def signal_to_wire(signal: Signal) -> pb.Signal:
    return pb.Signal(
        key=signal.key,
        seq=signal.seq,
        name=signal.name,
        value=payload_from_bytes(signal.value),
        sent_at_us=signal.sent_at,
        taken_seq=signal.taken_seq,
    )


def signal_from_wire(signal: pb.Signal) -> Signal:
    return Signal(
        key=signal.key,
        seq=signal.seq,
        name=signal.name,
        value=signal.value.data or NULL,
        sent_at=signal.sent_at_us,
        taken_seq=signal.taken_seq if signal.HasField("taken_seq") else None,
    )


def inbox_to_wire(inbox: Inbox) -> worker_pb2.ReadInboxResponse:
    return worker_pb2.ReadInboxResponse(
        inbox_seq=inbox.inbox_seq,
        cancel_requested=inbox.cancel_requested,
        signals=[signal_to_wire(signal) for signal in inbox.signals],
        outcomes=[step_to_record(step) for step in inbox.outcomes],
    )


def inbox_from_wire(inbox: worker_pb2.ReadInboxResponse) -> Inbox:
    return Inbox(
        inbox_seq=inbox.inbox_seq,
        cancel_requested=inbox.cancel_requested,
        signals=tuple(signal_from_wire(signal) for signal in inbox.signals),
        outcomes=tuple(step_from_record(record) for record in inbox.outcomes),
    )


def news_to_wire(news: RunNews) -> worker_pb2.RunNews:
    return worker_pb2.RunNews(run_id=news.run_id, inbox_seq=news.inbox_seq, cancelled=news.cancelled)


def news_from_wire(news: worker_pb2.RunNews) -> RunNews:
    return RunNews(news.run_id, news.inbox_seq, news.cancelled)
