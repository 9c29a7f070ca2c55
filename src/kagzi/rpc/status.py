"""Errors as gRPC statuses, and back.

A failed call has the fitting code, and in its trailer `grpc-status-details-bin` one serialized ErrorDetail. Its
`exact_code` is the stable code of our error's class, so that our own clients raise exactly what the engine raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from kagzi import errors
from kagzi._proto.v1 import common_pb2 as pb
from kagzi.errors import (
    Conflict,
    InvalidRequest,
    KagziError,
    LeaseLost,
    LimitExceeded,
    NamespaceDisabled,
    NotFound,
    PermissionDenied,
    SchemaMismatch,
    Unauthenticated,
    Unavailable,
    VersionMismatch,
)
from kagzi.ports.disclosure import message_to_caller
from kagzi.rpc.limits import ERROR_TEXT_BYTES
from kagzi.version import __version__

log = logging.getLogger("kagzi.rpc")

TRAILER: Final = "grpc-status-details-bin"
_STATUS_TEXT_CHARACTERS: Final = 300

# The first class that fits decides.
_STATUSES: Final[tuple[tuple[type[KagziError], grpc.StatusCode, pb.ErrorCode], ...]] = (
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT, pb.ERROR_CODE_INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND, pb.ERROR_CODE_NOT_FOUND),
    (Conflict, grpc.StatusCode.ABORTED, pb.ERROR_CODE_CONFLICT),
    (NamespaceDisabled, grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_CODE_PRECONDITION_FAILED),
    (LeaseLost, grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_CODE_PRECONDITION_FAILED),
    (SchemaMismatch, grpc.StatusCode.FAILED_PRECONDITION, pb.ERROR_CODE_PRECONDITION_FAILED),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, pb.ERROR_CODE_UNAUTHORIZED),
    (PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, pb.ERROR_CODE_UNAUTHORIZED),
    (LimitExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED, pb.ERROR_CODE_UNAVAILABLE),
    (Unavailable, grpc.StatusCode.UNAVAILABLE, pb.ERROR_CODE_UNAVAILABLE),
    (KagziError, grpc.StatusCode.INTERNAL, pb.ERROR_CODE_INTERNAL),
)
# What a status of a server that says no more than that is here.
_BY_STATUS: Final[dict[grpc.StatusCode, type[KagziError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: LeaseLost,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
}


class Refused(Exception):
    """A call that fails with a status of its own, for what no error of the tree says."""

    def __init__(self, status: grpc.StatusCode, detail: pb.ErrorDetail) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail


def wrong_state(message: str, *, subject: str = "", subject_id: str = "", exact_code: str = "") -> Refused:
    detail = pb.ErrorDetail(
        code=pb.ERROR_CODE_PRECONDITION_FAILED,
        message=message,
        non_retryable=True,
        subject=subject,
        subject_id=subject_id,
        exact_code=exact_code,
    )
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, detail)


def finally_failed(detail: pb.ErrorDetail, step: str) -> Refused:
    """Refuses a step that has failed for good; the caller gets the step's own error."""
    detail.subject = detail.subject or "step"
    detail.subject_id = detail.subject_id or step
    detail.non_retryable = True
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, detail)


def unknown_method(name: str) -> Refused:
    words = f"there is no method {name[:100]!r} here"
    refused = _refused(grpc.StatusCode.UNIMPLEMENTED, pb.ERROR_CODE_INVALID_ARGUMENT, VersionMismatch, words)
    refused.detail.non_retryable = True
    return refused


def about_to_stop() -> Refused:
    words = "the server is about to stop; trying again is safe"
    return _refused(grpc.StatusCode.UNAVAILABLE, pb.ERROR_CODE_UNAVAILABLE, Unavailable, words)


def not_ready() -> Refused:
    words = "the server cannot reach its database; trying again, here or at another server, is safe"
    return _refused(grpc.StatusCode.UNAVAILABLE, pb.ERROR_CODE_UNAVAILABLE, Unavailable, words)


def too_slow() -> Refused:
    words = "the server could not answer in time; trying again is safe"
    return _refused(grpc.StatusCode.DEADLINE_EXCEEDED, pb.ERROR_CODE_TIMEOUT, Unavailable, words)


def _refused(status: grpc.StatusCode, code: pb.ErrorCode, error: type[KagziError], words: str) -> Refused:
    return Refused(status, pb.ErrorDetail(code=code, message=words, exact_code=error.code))


def describe(error: BaseException, name_request: Callable[[], str]) -> tuple[grpc.StatusCode, pb.ErrorDetail]:
    """Returns what the caller is told. Of an error that was not foreseen that is an id, under which the log has the
    rest."""
    if isinstance(error, Refused):
        return error.status, error.detail
    if isinstance(error, KagziError):
        for cls, status, code in _STATUSES:
            if isinstance(error, cls):
                return status, pb.ErrorDetail(
                    code=code,
                    message=_clip(message_to_caller(error) or type(error).__name__),
                    non_retryable=not (isinstance(error, Unavailable) and getattr(error, "passing", True)),
                    exact_code=error.code,
                )
    request = name_request()
    about = {"request_id": request}
    log.error("a call failed for a reason nobody foresaw [%s]", request, exc_info=error, extra=about)
    return grpc.StatusCode.INTERNAL, pb.ErrorDetail(
        code=pb.ERROR_CODE_INTERNAL,
        message=f"internal error {request}; the server's log has more under this id",
        metadata=about,
        exact_code=KagziError.code,
    )


def status_text(detail: pb.ErrorDetail) -> str:
    return detail.message[:_STATUS_TEXT_CHARACTERS]


def trailer(detail: pb.ErrorDetail) -> tuple[tuple[str, bytes], ...]:
    if detail.HasField("failure") and detail.ByteSize() > ERROR_TEXT_BYTES:
        # A whole failure with its traceback does not fit into a trailer; whoever wants it reads the step.
        short = pb.ErrorDetail()
        short.CopyFrom(detail)
        short.ClearField("failure")
        short.message = _clip(short.message)
        detail = short
    return ((TRAILER, detail.SerializeToString()),)


def error_of(detail: pb.ErrorDetail) -> KagziError:
    """Returns the error that the server's engine raised."""
    cls = _CLASSES.get(detail.exact_code)
    if cls is None:
        cls = next((cls for cls, _, code in _STATUSES if code == detail.code), KagziError)
    error = cls(detail.message)
    if isinstance(error, LimitExceeded):
        error.passing = not detail.non_retryable
    return error


def error_of_call(call: Any) -> KagziError:
    """Returns the error that a failed call means: of a grpc.RpcError, whose two kinds have these methods in common."""
    status: grpc.StatusCode = call.code()
    for key, value in call.trailing_metadata() or ():
        if key == TRAILER and isinstance(value, bytes):
            try:
                return error_of(pb.ErrorDetail.FromString(value))
            except DecodeError:
                break
    text: str = call.details() or ""
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return VersionMismatch(
            f"the server does not know a call of this client, which is version {__version__}; upgrade the server"
        )
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "Concurrent RPC limit" in text:
        return LimitExceeded("more calls are under way than the server allows; trying again later is safe")
    cls = _BY_STATUS.get(status, KagziError)
    if cls is Unavailable:
        return Unavailable(f"the server did not answer ({status.name}: {text[:200]}); trying again is safe")
    return cls(f"{status.name}: {text[:200]}")


def _clip(text: str) -> str:
    if len(text) * 4 <= ERROR_TEXT_BYTES:
        return text
    return text.encode("utf-8", "replace")[:ERROR_TEXT_BYTES].decode("utf-8", "ignore")


def _descendants(cls: type[KagziError]) -> Iterator[type[KagziError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _descendants(child)


# Classes of our own tree only: what users derive from it does not come over a wire as an error of a call.
_CLASSES: Final[dict[str, type[KagziError]]] = {
    cls.code: cls for cls in _descendants(KagziError) if cls.__module__ == errors.__name__
}
