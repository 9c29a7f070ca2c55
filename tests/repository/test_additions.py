"""What CONTRIBUTING says about how many files an addition touches, counted on what is there."""

from __future__ import annotations

import ast
import re

import pytest
from msgspec.structs import fields

from kagzi.api.operations import ChildStart, StartRun
from kagzi.api.workers import Claim
from kagzi.core.carried import CARRIED
from kagzi.core.run import Run
from tests.repository.test_architecture import ROOT

STORES = ("sqlite", "postgres")
# Where a column is handed on. Elsewhere it is given, shown or used, which is what it is for.
PLUMBING = ("proto", "src/kagzi/api", "src/kagzi/core", "src/kagzi/engine", "src/kagzi/rpc/convert", "src/kagzi/store")
# A later start that joins a debounced run brings its own; a start over the wire may have a malformed one.
OWN_RULES = {
    "src/kagzi/rpc/convert/runs.py",
    *(
        f"src/kagzi/store/{store}/{name}"
        for store in ("sqlite", "postgres")
        for name in ("debounce.py", "sql/debounce.sql")
    ),
}


def files_naming(word: str) -> set[str]:
    found = set()
    for folder in PLUMBING:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".py", ".sql", ".proto") or "migrations" in path.parts:
                continue
            if re.search(rf"\b{word}\b", path.read_text(encoding="utf-8")):
                found.add(path.relative_to(ROOT).as_posix())
    return found


def test_a_column_that_a_run_carries_is_named_in_few_files() -> None:
    """With a migration for each store that is ten."""
    assert files_naming("trace_context") - OWN_RULES == {
        "proto/kagzi/_proto/v1/worker.proto",
        "proto/kagzi/_proto/v1/workflow.proto",
        "src/kagzi/api/operations.py",
        "src/kagzi/api/workers.py",
        "src/kagzi/core/carried.py",
        "src/kagzi/store/postgres/schema.sql",
        "src/kagzi/store/sqlite/schema.sql",
    }


def test_records_have_the_columns_that_a_run_carries() -> None:
    names = {record: {field.name for field in fields(record)} for record in (StartRun, ChildStart, Claim, Run)}
    for column in CARRIED:
        assert column.name in names[StartRun] & names[ChildStart], column.name
        assert (column.name in names[Claim], column.name in names[Run]) == (column.to_worker, column.to_people)


@pytest.mark.parametrize(
    ("operation", "files"),
    [
        # Checked, written and made; the two stores have a module of their own for it.
        (
            "ContinueRun",
            [
                "engine/checks",
                "sdk/worker/attempt",
                *(f"store/{s}/{m}" for s in STORES for m in ("chunks", "continues")),
            ],
        ),
        ("TakeSignal", ["sdk/replay/execution", *(f"store/{store}/chunks" for store in STORES)]),
    ],
)
def test_an_operation_is_named_in_few_modules(operation: str, files: list[str]) -> None:
    """Beside the one that has the list of them."""
    product = ROOT / "src" / "kagzi"
    found = {
        path.relative_to(product).with_suffix("").as_posix()
        for path in product.rglob("*.py")
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "kagzi.api.operations"
        if operation in {name.name for name in node.names}
    }
    assert found == set(files)
