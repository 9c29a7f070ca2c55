"""What both sides of the wire share: payloads, instants, pages, retry policies."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi._proto.v1 import common_pb2 as pb
from kagzi.core.duration import LONGEST
from kagzi.core.instant import NEVER, SECOND, Instant, showable
from kagzi.core.limits import check_page_size
from kagzi.core.page import Page, check_token
from kagzi.core.retry import UNLIMITED, Retry
from kagzi.errors import InvalidRequest

T = TypeVar("T")

NULL: Final = b"null"

# The engine stores bytes. A payload with metadata is stored as the whole message behind this mark, with which neither
# JSON nor any other text begins.
_MARK: Final = b"\x00kagzi.v1.Payload\x00"
_LONGEST_MS: Final = LONGEST // 1000


def payload_to_bytes(payload: pb.Payload) -> bytes:
    if not payload.metadata and not payload.data.startswith(_MARK):
        return payload.data
    return _MARK + payload.SerializeToString(deterministic=True)


def payload_from_bytes(data: bytes | None) -> pb.Payload:
    if data is None:
        return pb.Payload()
    if data.startswith(_MARK):
        try:
            return pb.Payload.FromString(data[len(_MARK) :])
        except DecodeError:
            pass  # bytes of somebody's own that begin like that; they did not come as a Payload
    return pb.Payload(data=data)


def plain_bytes(data: bytes) -> bytes:
    """Returns what our own SDK reads of a stored payload: the data, and null if there is none."""
    if data.startswith(_MARK):
        data = payload_from_bytes(data).data
    return data or NULL


def timestamp(instant: Instant | None) -> Timestamp | None:
    if instant is None:
        return None
    seconds, micros = divmod(showable(instant), SECOND)
    return Timestamp(seconds=seconds, nanos=micros * 1000)


def instant(moment: Timestamp, field: str) -> Instant:
    if not 0 <= moment.nanos < 1_000_000_000 or not 0 <= moment.seconds <= NEVER // SECOND:
        raise InvalidRequest(f"{field} must lie between the years 1970 and 9999")
    return moment.seconds * SECOND + moment.nanos // 1000


def optional_instant(message: Message, field: str) -> Instant | None:
    return instant(getattr(message, field), field) if message.HasField(field) else None


def page_info(page: Page[Any], total: int = 0, *, at_least: bool = False) -> pb.PageInfo:
    return pb.PageInfo(
        next_page_token=page.next or "",
        has_more=page.next is not None,
        total_count=total,
        prev_page_token=page.prev or "",
        total_is_least=at_least,
        searched_until_us=page.searched_until or 0,
    )


def page_from_wire(items: Iterable[T], info: pb.PageInfo) -> Page[T]:
    return Page(
        tuple(items), info.next_page_token or None, info.prev_page_token or None, info.searched_until_us or None
    )


def page_request(page_size: int, page_token: str | None, *, total: bool = False) -> pb.PageRequest:
    """Checks size and token of a page before they are sent: on the wire a size of 0 is the default, and not every other
    one fits."""
    token = check_token(page_token) if page_token else None
    return pb.PageRequest(page_size=check_page_size(page_size), page_token=token, include_total_count=total)


def page_size(request: pb.PageRequest, default: int) -> int:
    return request.page_size or default


def retry_policy(policy: pb.RetryPolicy, base: Retry) -> Retry:
    """Reads a policy of the wire; what it does not say is taken from `base`."""
    first = _span(policy.initial_interval_ms, "initial_interval_ms") or base.first_span
    cap = _span(policy.maximum_interval_ms, "maximum_interval_ms") or max(base.cap_span, first)
    if policy.maximum_attempts < UNLIMITED:
        raise InvalidRequest(f"maximum_attempts must be -1 or more, not {policy.maximum_attempts}")
    return Retry(
        attempts=policy.maximum_attempts or 1,
        first=timedelta(microseconds=first),
        factor=policy.backoff_coefficient or base.factor,
        cap=timedelta(microseconds=cap),
        jitter=base.jitter,
        retry_on=base.retry_on,
        give_up_on=tuple(policy.non_retryable_errors) or base.give_up_on,
    )


def _span(milliseconds: int, field: str) -> int:
    if not 0 <= milliseconds <= _LONGEST_MS:
        raise InvalidRequest(f"{field} must be between 0 and {_LONGEST_MS:,}, not {milliseconds}")
    return milliseconds * 1000
