"""Claims with histories that may not fit into one message: the beginning goes with the claim, the rest in pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from kagzi._proto.v1 import worker_pb2 as pb
from kagzi.api.workers import Claim, LeaseState
from kagzi.core.step import Step
from kagzi.errors import InvalidRequest
from kagzi.rpc.convert.signals import signal_to_wire
from kagzi.rpc.convert.work import claim_to_wire, step_to_record
from kagzi.rpc.limits import ANSWER_BYTES

MANY: Final = 100  # claims, or steps of one; more are a few milliseconds of work
_KEPT: Final = 32  # histories somebody is reading; others are read from the engine again
_INPUT: Final = "input"  # the page token before anything was sent


def claims_to_wire(claims: Iterable[Claim], kept: KeptClaims) -> list[pb.Claim]:
    room = ANSWER_BYTES
    messages: list[pb.Claim] = []
    for claim in claims:
        message = claim_to_wire(claim)
        room -= 300
        weight = len(claim.input) + len(claim.failed_input or b"")
        if weight <= room:
            message.input = claim.input
            if claim.failed_input is not None:
                message.failed_input = claim.failed_input
            room -= weight
            count, room = _fill(message.history, claim.history, 0, room)
            if count < len(claim.history):
                message.history_page_token = str(count)
            room = _add_signals(message, claim, room)
        else:
            message.history_page_token = _INPUT
        if message.history_page_token:
            kept.add(claim)
        messages.append(message)
    return messages


def _add_signals(message: pb.Claim, claim: Claim, room: int) -> int:
    """Adds the signals of a claim if all of them fit; returns what room is left."""
    if claim.inbox is None:
        return room
    signals = [signal_to_wire(signal) for signal in claim.inbox]
    size = sum(signal.ByteSize() + 8 for signal in signals)
    if size > room:
        return room
    message.signals.extend(signals)
    message.signals_complete = True
    return room - size


def history_page(claim: Claim | LeaseState, page_token: str) -> pb.GetHistoryResponse:
    response = pb.GetHistoryResponse()
    room = ANSWER_BYTES
    begin = 0
    if page_token == _INPUT:
        response.input = claim.input
        room -= len(claim.input)
        if claim.failed_input is not None:
            response.failed_input = claim.failed_input
            room -= len(claim.failed_input)
    elif page_token.isascii() and page_token.isdigit() and len(page_token) < 10:
        begin = int(page_token)
    else:
        raise InvalidRequest("page_token must be that of the claim or of the page before")
    if begin > len(claim.history):
        raise InvalidRequest("page_token points beyond the end of this history")
    count, _ = _fill(response.history, claim.history, begin, room, at_least_one=page_token != _INPUT)
    if begin + count < len(claim.history):
        response.next_page_token = str(begin + count)
    return response


class KeptClaims:
    """Claims of which only the beginning was sent."""

    def __init__(self) -> None:
        self._claims: OrderedDict[tuple[str, str, str], Claim | LeaseState] = OrderedDict()

    def add(self, claim: Claim | LeaseState) -> None:
        self._claims[claim.namespace, claim.run_id, claim.token] = claim
        while len(self._claims) > _KEPT:
            self._claims.popitem(last=False)

    def get(self, namespace: str, run_id: str, token: str) -> Claim | LeaseState | None:
        return self._claims.get((namespace, run_id, token))

    def discard(self, namespace: str, run_id: str, token: str) -> None:
        self._claims.pop((namespace, run_id, token), None)


def _fill(
    records: RepeatedCompositeFieldContainer[pb.StepRecord],
    history: tuple[Step, ...],
    begin: int,
    room: int,
    *,
    at_least_one: bool = False,
) -> tuple[int, int]:
    """Appends what fits; returns how many rows that was, and how much room is left."""
    count = 0
    taken: list[pb.StepRecord] = []
    for step in history[begin:]:
        record = step_to_record(step)
        size = record.ByteSize() + 8
        if size > room and not (at_least_one and not count):
            break
        taken.append(record)
        room -= size
        count += 1
    records.extend(taken)
    return count, room
