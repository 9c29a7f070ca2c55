"""Errors of steps and runs: stored failures into ErrorDetail, and back."""

from __future__ import annotations

from typing import Final, cast

from kagzi._proto.v1 import common_pb2 as pb
from kagzi.core.error_kind import ErrorKind
from kagzi.core.failure import MESSAGE_CHARACTERS, Failure, check_failure
from kagzi.core.instant import SECOND
from kagzi.core.retry import asked_delay
from kagzi.errors import InvalidRequest, RetryAfter, StepFailed

_MOST_FACTS: Final = 64
_MOST_CHARACTERS: Final = 4000

_CODES: Final[dict[ErrorKind, pb.ErrorCode]] = {
    ErrorKind.NOT_FOUND: pb.ERROR_CODE_NOT_FOUND,
    ErrorKind.BAD_REQUEST: pb.ERROR_CODE_INVALID_ARGUMENT,
    ErrorKind.VALIDATION: pb.ERROR_CODE_INVALID_ARGUMENT,
    ErrorKind.UNAUTHORIZED: pb.ERROR_CODE_UNAUTHORIZED,
    ErrorKind.UNAVAILABLE: pb.ERROR_CODE_UNAVAILABLE,
    ErrorKind.NETWORK: pb.ERROR_CODE_UNAVAILABLE,
    ErrorKind.DATABASE: pb.ERROR_CODE_UNAVAILABLE,
    ErrorKind.RATE_LIMIT: pb.ERROR_CODE_UNAVAILABLE,
    ErrorKind.TIMEOUT: pb.ERROR_CODE_TIMEOUT,
}
_KINDS: Final[dict[int, ErrorKind]] = {
    pb.ERROR_CODE_NOT_FOUND: ErrorKind.NOT_FOUND,
    pb.ERROR_CODE_INVALID_ARGUMENT: ErrorKind.VALIDATION,
    pb.ERROR_CODE_UNAUTHORIZED: ErrorKind.UNAUTHORIZED,
    pb.ERROR_CODE_UNAVAILABLE: ErrorKind.UNAVAILABLE,
    pb.ERROR_CODE_TIMEOUT: ErrorKind.TIMEOUT,
}
_DETAIL: Final = "detail"  # where a failure keeps what only an ErrorDetail can say


def failure_to_detail(data: bytes, code: pb.ErrorCode | None = None) -> pb.ErrorDetail:
    """Converts a stored failure. `code` is for errors about which more is known than their kind."""
    failure = Failure.decode(data)
    attributes = failure.attributes or {}
    said = attributes.get(_DETAIL)
    said = said if isinstance(said, dict) else {}
    known = said.get("code")
    if code is None and isinstance(known, int) and known in pb.ErrorCode.values():
        code = cast("pb.ErrorCode", known)
    detail = pb.ErrorDetail(
        code=code if code is not None else _CODES.get(failure.kind, pb.ERROR_CODE_INTERNAL),
        message=failure.message or failure.type,
        non_retryable=failure.non_retryable,
        failure=data,
    )
    if isinstance(subject := said.get("subject"), str):
        detail.subject = subject
    if isinstance(subject_id := said.get("subject_id"), str):
        detail.subject_id = subject_id
    if isinstance(metadata := said.get("metadata"), dict):
        detail.metadata.update({str(key): str(value) for key, value in metadata.items()})
    if delay := asked_delay(failure):
        detail.retry_after_ms = -(-delay // 1000)
    return detail


def failure_from_detail(detail: pb.ErrorDetail) -> Failure:
    """Reads what a client in the field reports of a failed step or run. Its metadata may name the error's type, for
    `non_retryable_errors` to match."""
    if detail.HasField("failure"):
        check_failure(detail.failure, "error.failure")
        return Failure.decode(detail.failure)
    _check(detail)
    said: dict[str, object] = {}
    if detail.code:
        said["code"] = int(detail.code)
    if detail.subject:
        said["subject"] = detail.subject
    if detail.subject_id:
        said["subject_id"] = detail.subject_id
    if detail.metadata:
        said["metadata"] = dict(detail.metadata)
    attributes: dict[str, object] = {_DETAIL: said} if said else {}
    kind = _KINDS.get(detail.code, ErrorKind.UNKNOWN)
    message = detail.message[:MESSAGE_CHARACTERS]
    if detail.retry_after_ms > 0 and not detail.non_retryable:
        attributes["delay"] = detail.retry_after_ms * 1000 / SECOND
        return Failure.of(RetryAfter, message, ErrorKind.UNKNOWN, attributes=attributes)
    return Failure.of(
        detail.metadata.get("type") or StepFailed,
        message,
        kind,
        non_retryable=detail.non_retryable or not kind.retryable,
        attributes=attributes or None,
    )


def error_from_wire(detail: pb.ErrorDetail, *, exact: bool) -> bytes | None:
    """Returns what is recorded of an error. A server that is not `exact` sends no failure, and its words stand for
    it."""
    if detail.HasField("failure"):
        return detail.failure
    if exact or not detail.ByteSize():
        return None
    return failure_from_detail(detail).encode()


def _check(detail: pb.ErrorDetail) -> None:
    if len(detail.metadata) > _MOST_FACTS:
        raise InvalidRequest(f"error.metadata has {len(detail.metadata)} entries; at most {_MOST_FACTS} are kept")
    texts = [detail.subject, detail.subject_id, *detail.metadata.keys(), *detail.metadata.values()]
    if any(len(text) > _MOST_CHARACTERS for text in texts):
        raise InvalidRequest(f"error.subject and error.metadata hold at most {_MOST_CHARACTERS:,} characters each")
    if not 0 <= detail.retry_after_ms <= 2**53:
        raise InvalidRequest(f"error.retry_after_ms must not be negative or absurdly long: {detail.retry_after_ms}")
