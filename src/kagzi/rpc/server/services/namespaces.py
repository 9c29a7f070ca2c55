"""NamespaceService: tenants, for administrators."""

from __future__ import annotations

from kagzi._proto.v1 import namespace_pb2 as pb
from kagzi.core.limits import DEFAULT_PAGE_SIZE
from kagzi.rpc.convert.common import page_info, page_size
from kagzi.rpc.convert.namespaces import namespace_to_wire
from kagzi.rpc.server.services.host import Call, Host


class NamespaceService:
    def __init__(self, host: Host) -> None:
        self._namespaces = host.engine.namespaces

    async def CreateNamespace(self, request: pb.CreateNamespaceRequest, call: Call) -> pb.CreateNamespaceResponse:  # noqa: ARG002
        made = await self._namespaces.create(
            request.namespace, display_name=request.display_name, description=request.description
        )
        return pb.CreateNamespaceResponse(namespace=namespace_to_wire(made))

    async def GetNamespace(self, request: pb.GetNamespaceRequest, call: Call) -> pb.GetNamespaceResponse:  # noqa: ARG002
        return pb.GetNamespaceResponse(namespace=namespace_to_wire(await self._namespaces.get(request.namespace)))

    async def ListNamespaces(self, request: pb.ListNamespacesRequest, call: Call) -> pb.ListNamespacesResponse:  # noqa: ARG002
        page = await self._namespaces.list(
            page_size=page_size(request.page, DEFAULT_PAGE_SIZE), page_token=request.page.page_token or None
        )
        return pb.ListNamespacesResponse(
            namespaces=[namespace_to_wire(namespace) for namespace in page.items], page=page_info(page)
        )

    async def UpdateNamespace(self, request: pb.UpdateNamespaceRequest, call: Call) -> pb.UpdateNamespaceResponse:  # noqa: ARG002
        changed = await self._namespaces.update(
            request.namespace,
            display_name=request.display_name if request.HasField("display_name") else None,
            description=request.description if request.HasField("description") else None,
            on_failure=request.on_failure if request.HasField("on_failure") else None,
            on_failure_queue=request.on_failure_queue if request.HasField("on_failure_queue") else None,
        )
        return pb.UpdateNamespaceResponse(namespace=namespace_to_wire(changed))

    async def EnableNamespace(self, request: pb.EnableNamespaceRequest, call: Call) -> pb.EnableNamespaceResponse:  # noqa: ARG002
        changed = await self._namespaces.enable(request.namespace, True)
        return pb.EnableNamespaceResponse(namespace=namespace_to_wire(changed))

    async def DisableNamespace(self, request: pb.DisableNamespaceRequest, call: Call) -> pb.DisableNamespaceResponse:  # noqa: ARG002
        changed = await self._namespaces.enable(request.namespace, False)
        return pb.DisableNamespaceResponse(namespace=namespace_to_wire(changed))
