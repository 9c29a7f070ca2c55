"""Errors as problem documents (RFC 9457).

`code` is the stable code of our error's class, the same as over gRPC; `field` names what was wrong in the request,
where that is one thing. Of an error nobody foresaw the caller gets the request id, under which the log has the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from kagzi.core.failed_run import HANDLER_ALONE
from kagzi.errors import (
    Conflict,
    InvalidRequest,
    KagziError,
    LeaseLost,
    LimitExceeded,
    NamespaceDisabled,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    SchemaMismatch,
    Unauthenticated,
    Unavailable,
)
from kagzi.ports.disclosure import message_to_caller

log = logging.getLogger("kagzi.http")

MEDIA_TYPE: Final = "application/problem+json"
_DETAIL_CHARACTERS: Final = 2000
_RETRY_SOON: Final = {"retry-after": "1"}

# The first class that fits decides.
_STATUSES: Final[tuple[tuple[type[KagziError], int, Mapping[str, str]], ...]] = (
    (PayloadTooLarge, 413, {}),
    (InvalidRequest, 400, {}),
    (NotFound, 404, {}),
    (Conflict, 409, {}),
    (NamespaceDisabled, 409, {}),
    (LeaseLost, 409, {}),
    (Unauthenticated, 401, {"www-authenticate": 'Bearer realm="kagzi"'}),
    (PermissionDenied, 403, {}),
    (LimitExceeded, 429, _RETRY_SOON),
    (SchemaMismatch, 503, {}),
    (Unavailable, 503, _RETRY_SOON),
)


class Problem(Struct, frozen=True, kw_only=True):
    """What went wrong. `type` names the kind of problem, `detail` says what happened this time."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | UnsetType = UNSET
    request_id: str


class Refused(Exception):
    """A request that is refused for a reason of HTTP's own, which no error of the tree says."""

    def __init__(
        self, status: int, code: str, detail: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.field = field
        self.headers = headers or {}


class BadField(InvalidRequest):
    """Bad input, and which part of the request it was in."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def check_handler_queue(name: str | None, queue: str | None) -> None:
    """Refuses the queue of a failure handler without the handler, and both in one."""
    if queue is not None and not name:
        raise BadField("on_failure_queue", "on_failure_queue is the queue of on_failure, which is not given")
    if queue is None and name and "@" in name:
        raise BadField("on_failure", HANDLER_ALONE)


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Names this part of the request in errors that are raised within the block."""
    try:
        yield
    except InvalidRequest as error:
        raise BadField(field, str(error)) from None


def problem_response(error: Exception, request_id: str) -> Response:
    status, code, detail, headers = describe(error, request_id)
    problem = Problem(
        type=f"urn:kagzi:problem:{code.lower().replace('_', '-')}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_printable(detail)[:_DETAIL_CHARACTERS],
        code=code,
        field=getattr(error, "field", None) or UNSET,
        request_id=request_id,
    )
    return Response(msgspec.json.encode(problem), status, dict(headers), MEDIA_TYPE)


def code_of(error: BaseException) -> str:
    return error.code if isinstance(error, KagziError | Refused) else KagziError.code


def describe(error: Exception, request_id: str) -> tuple[int, str, str, Mapping[str, str]]:
    """Returns status, code, detail and headers of the answer to a request that failed."""
    if isinstance(error, Refused):
        return error.status, error.code, str(error), error.headers
    for cls, status, headers in _STATUSES:
        if isinstance(error, cls):
            return status, error.code, message_to_caller(error), headers
    about = {"request_id": request_id}
    log.error("a request failed for a reason nobody foresaw [%s]", request_id, exc_info=error, extra=about)
    detail = f"internal error; the server's log has more under the request id {request_id}"
    return 500, KagziError.code, detail, {}


def _printable(text: str) -> str:
    """Returns text that can be answered with: half a surrogate pair in a request must not make the answer about it
    fail."""
    return text.encode("utf-8", "backslashreplace").decode()
