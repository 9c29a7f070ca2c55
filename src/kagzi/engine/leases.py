"""Leases, as a server looks at them for clients that do not."""

from __future__ import annotations

from collections.abc import Callable

from kagzi.api.workers import LeaseState
from kagzi.core.instant import Span
from kagzi.core.limits import check_id, check_name
from kagzi.errors import LeaseLost, NotFound
from kagzi.store.protocol.store import Store


class Leases:
    """`api.workers.LeaseService` over a store."""

    def __init__(self, store: Store, on_confirmed: Callable[[str, Span], None]) -> None:
        self._store = store
        self._on_confirmed = on_confirmed  # told who holds a lease, and its length

    async def read(self, namespace: str, run_id: str, token: str, *, confirm: bool = False) -> LeaseState:
        check_name(namespace, "namespace")
        run_id, token = check_id(run_id, "run id"), check_id(token, "token")
        state = await self._store.work.read_lease(namespace, run_id, token, confirm)
        if state is not None:
            if confirm:
                self._on_confirmed(state.worker_id, state.lease)
            return state
        if await self._store.runs.get(namespace, run_id) is None:
            raise NotFound(f"there is no run {run_id} in namespace {namespace}")
        raise LeaseLost(f"the lease on run {run_id} has ended; somebody else may drive it now")
