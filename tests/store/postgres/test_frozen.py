"""What a process holds that is frozen at a bad moment."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from kagzi.core.flow import Scope
from kagzi.store.postgres.arrays import AskingOnce
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.protocol.limits import LimitChange
from kagzi.testing.conformance.bench import NAMESPACE, QUEUE, Bench


async def test_nothing_is_prepared_while_limits_are_locked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends no transaction that waits for the second half of a statement, and all claims wait for it."""
    ask = AskingOnce._get_statement
    used: defaultdict[int, set[str]] = defaultdict(set)
    prepared: list[str] = []

    async def watched(self: AskingOnce, query: str, *args: Any, **options: Any) -> Any:
        if query not in used[id(self)] and self.is_in_transaction():
            prepared.append(query)
        used[id(self)].add(query)
        return await ask(self, query, *args, **options)

    monkeypatch.setattr(AskingOnce, "_get_statement", watched)
    await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(concurrency=1))
    assert prepared, "the test sees what is prepared"
    prepared.clear()
    first = await bench.start()
    await bench.start()
    assert await bench.claimed_ids(limit=2) == [first]
    await bench.store.limits.change(NAMESPACE, Scope.QUEUE, QUEUE, LimitChange(concurrency=2))
    prepared.clear()
    await bench.store.limits.declare(NAMESPACE)
    await bench.store.limits.unhold(NAMESPACE, ())
    assert len(await bench.claimed_ids(limit=2)) == 1
    names = {text: name for name, text in STATEMENTS.items()}
    assert [names[query] for query in prepared] == []
