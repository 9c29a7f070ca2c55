"""AdminService: looking after a server and its workers."""

from __future__ import annotations

from typing import Final

from kagzi._proto.v1 import admin_pb2 as pb
from kagzi._proto.v1.common_pb2 import PageInfo, PageRequest
from kagzi.core.limits import check_page_size
from kagzi.core.page import Cursor, sign, verify
from kagzi.errors import InvalidRequest, NotFound
from kagzi.rpc.convert.common import page_size
from kagzi.rpc.convert.health import health_to_wire
from kagzi.rpc.convert.runs import namespace_of
from kagzi.rpc.convert.steps import step_to_wire
from kagzi.rpc.limits import ANSWER_BYTES
from kagzi.rpc.methods import PACKAGE, SERVICES
from kagzi.rpc.services.host import Call, Host

_STEPS_PAGE: Final = 50
# As with runs: a token is a position, and bound to its listing.
_SECRET: Final = b"kagzi page tokens"


class AdminService:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._workflows = host.engine.workflows

    async def HealthCheck(self, request: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:  # noqa: ARG002
        if request.service and request.service.removeprefix(f"{PACKAGE}.") not in SERVICES:
            raise NotFound(f"there is no service {request.service[:100]!r}; there are {', '.join(SERVICES)}")
        return health_to_wire(await self._host.engine.health(), self._host.clock.now())

    async def ListSteps(self, request: pb.ListStepsRequest, call: Call) -> pb.ListStepsResponse:  # noqa: ARG002
        namespace = namespace_of(request.namespace)
        size = check_page_size(page_size(request.page, _STEPS_PAGE))
        filter_text = f"steps {namespace!r} {request.run_id!r} {request.step_name!r} {request.HasField('step_name')}"
        begin = _begin(request.page, filter_text)
        steps = await self._workflows.steps(namespace, request.run_id)
        if request.HasField("step_name"):
            steps = tuple([step for step in steps if step.name == request.step_name])
        response = pb.ListStepsResponse()
        bytes_left = ANSWER_BYTES
        for step in steps[begin : begin + size]:
            message = step_to_wire(step, namespace, request.run_id)
            bytes_left -= message.ByteSize()
            if bytes_left < 0 and response.steps:
                break
            response.steps.append(message)
        end = begin + len(response.steps)
        response.page.CopyFrom(
            PageInfo(
                next_page_token=_token(end, filter_text) if end < len(steps) else None,
                has_more=end < len(steps),
                total_count=len(steps) if request.page.include_total_count else 0,
                prev_page_token=_token(max(0, begin - size), filter_text) if begin else None,
            )
        )
        return response


def _begin(page: PageRequest, filter_text: str) -> int:
    if not page.page_token:
        return 0
    if len(page.page_token) > 1000:
        raise InvalidRequest("page token is malformed; use the token of the page before")
    return int(verify(page.page_token, filter_text=filter_text, secret=_SECRET).key)


def _token(begin: int, filter_text: str) -> str:
    return sign(Cursor(str(begin)), filter_text=filter_text, secret=_SECRET)
