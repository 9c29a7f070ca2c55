"""Listing runs: the first page is full if there are as many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kagzi import Kagzi, NotFound
from kagzi.cli.filters import Filters
from kagzi.cli.options import settings_of
from kagzi.cli.runs import _list
from kagzi.store import searching


def wanted(**options: Any) -> Filters:
    nothing: dict[str, Any] = dict.fromkeys(Filters.__struct_fields__)
    return Filters(**nothing | {"tags": ()} | options)


async def test_a_filter_looks_as_far_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    async with Kagzi(url) as app:

        @app.workflow
        async def rare() -> None: ...

        @app.workflow
        async def common() -> None: ...

        for _ in range(2):
            await rare.start()
            for _ in range(3):
                await common.start()
    monkeypatch.setattr(searching, "BITES", (1, 1))
    loaded = settings_of(url=url)

    page = await _list(loaded, wanted(workflow="rare"), 2, None)
    assert [run.workflow_type for run in page.items] == ["rare", "rare"]
    only = await _list(loaded, wanted(workflow="rare"), 1, None)
    assert len(only.items) == 1
    assert only.next is not None


async def test_children_are_found_by_either_id_of_their_parent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    app = Kagzi(url)

    @app.workflow
    async def leaf() -> None: ...

    @app.workflow
    async def tree() -> None:
        await leaf.run()

    async with app, app.worker():
        run = await tree.options(id="tree-1").start()
        await run.result(timeout=20)
    loaded = settings_of(url=url)
    for parent in (run.id, "tree-1", run.id[:-1]):
        page = await _list(loaded, wanted(parent=parent), 10, None)
        assert [child.workflow_type for child in page.items] == ["leaf"]
    with pytest.raises(NotFound, match="there is no run 'tree-2'"):
        await _list(loaded, wanted(parent="tree-2"), 10, None)
