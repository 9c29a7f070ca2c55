"""Paths of keys as workers tell them to the engine, and what is told of those that lead nowhere."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from kagzi import Debounce, Kagzi, Limit
from kagzi.core.versions import MADE_BY_CODE
from kagzi.sdk.interfaces import start_defaults


class Renamed(msgspec.Struct, rename="camel"):
    tenant_id: str


@dataclass
class Customer:
    renamed: Renamed
    rest: dict[str, str]
    name: str = ""

    @property
    def first(self) -> str:
        return self.name[:1]


class Row(NamedTuple):
    tenant: str


class Named(TypedDict):
    tenant: str


class Model(pydantic.BaseModel):
    tenant: str


class Aliased(pydantic.BaseModel):
    tenant: str = pydantic.Field(alias="tenantId")


TOLD: list[tuple[Any, Any, str | None, str | None]] = [
    (str, "order", "order", None),
    (Customer, "order.renamed.tenant_id", "order.renamed.tenantId", None),
    (Customer | None, "order.rest.any", "order.rest.any", None),
    (dict[str, Customer], "order.a.name", "order.a.name", None),
    (Any, "order.tenant.id", "order.tenant.id", None),
    (Named, "order.tenant", "order.tenant", None),
    (Model, "order.tenant", "order.tenant", None),
    (Aliased, "order.tenant", MADE_BY_CODE, None),
    (Row, "order.tenant", MADE_BY_CODE, None),
    (Customer, "order.first", MADE_BY_CODE, None),
    (Customer, lambda order: order.name, MADE_BY_CODE, None),
    (Customer, "order.nam", "order.nam", "Customer has no 'nam'; did you mean 'name'?"),
    (Named, "order.tenat", "order.tenat", "Named has no 'tenat'; did you mean 'tenant'?"),
    (
        Customer,
        "order.renamed.tenantId",
        "order.renamed.tenantId",
        "Renamed has no 'tenantId'; did you mean 'tenant_id'?",
    ),
    (str, "order.tenant", "order.tenant", "a str has no 'tenant'"),
]


@pytest.mark.parametrize(("annotation", "key", "told", "trouble"), TOLD, ids=range(len(TOLD)))
def test_a_path_is_told_as_it_leads_through_json(
    annotation: Any, key: Any, told: str, trouble: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    app = Kagzi("memory://")

    async def sell(order: Any) -> None: ...

    sell.__annotations__["order"] = annotation
    workflow = app.workflow(concurrency=Limit(1, key=key), debounce=Debounce("1s", key=key))(sell)
    with caplog.at_level(logging.WARNING):
        defaults = start_defaults(workflow)
    assert defaults.debounce is not None
    assert (defaults.limit_key, defaults.debounce.key) == (told, told)
    nowhere = f"the key {key!r} of the {{}} of sell leads nowhere: {trouble}"
    assert caplog.messages == ([] if trouble is None else [nowhere.format(of) for of in ("limits", "debounce")])
