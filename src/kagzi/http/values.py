"""Values: what a run says about itself."""

from __future__ import annotations

from msgspec import Struct

from kagzi.http.apart import apart
from kagzi.http.call import Call, Namespaced
from kagzi.http.runs import run_id_of
from kagzi.ports.documents.runs import ProgressDocument, ValueDocument, progress_document, value_documents


class RunValues(Struct, frozen=True, kw_only=True):
    """The values of a run by name, and how far it has come; null if it has not said so, or not as JSON."""

    values: tuple[ValueDocument, ...]
    progress: ProgressDocument | None


async def get_values(call: Call[Namespaced, None]) -> RunValues:
    run_id = await run_id_of(call, call.path["run_id"])
    found = await call.engine.workflows.values(call.namespace, run_id)
    documents = await apart(sum(len(each.value) for each in found), value_documents, found)
    return RunValues(values=documents, progress=progress_document(found))
