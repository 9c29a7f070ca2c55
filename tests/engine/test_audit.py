"""The audit log: nothing that happened is left out, and nothing that was said spoils it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest

from kagzi.core.audit import AuditEntry
from kagzi.core.key import write_key
from kagzi.engine import audit as engine_audit
from kagzi.engine.audit import Audit
from kagzi.errors import Unavailable
from kagzi.logs import FIELDS
from tests.engine.support import run


class FakeStore:
    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.entries: list[AuditEntry] = []
        self.batches: list[int] = []
        self.audit = self

    async def page_secret(self) -> bytes:
        return bytes(32)

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        await asyncio.sleep(0.01)
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        self.batches.append(len(entries))
        self.entries += entries


def audit_on(store: FakeStore) -> Audit:
    return Audit(cast("Any", store))


def entry(target: str = "run 1", **fields: Any) -> AuditEntry:
    known = {"actor": "key:1", "action": "x", "namespace": "a", "request_id": "r", "peer": "p", "result": "OK"}
    return AuditEntry(target=target, **{**known, **fields})


def test_entries_are_written_together_and_in_order() -> None:
    store = FakeStore()

    async def scene() -> None:
        audit = audit_on(store)
        for number in range(7):
            audit.record(entry(str(number)))
        await asyncio.sleep(1)
        audit.record(entry("late"))
        await audit.close()

    run(scene)
    assert [each.target for each in store.entries] == [*map(str, range(7)), "late"]
    assert store.batches == [7, 1]


def test_a_database_that_is_away_loses_nothing() -> None:
    store = FakeStore(failures=3)

    async def scene() -> None:
        audit = audit_on(store)
        audit.record(entry("1"))
        await asyncio.sleep(0.5)
        audit.record(entry("2"))
        await asyncio.sleep(10)

    run(scene)
    assert [each.target for each in store.entries] == ["1", "2"]


def test_what_cannot_be_written_at_the_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore(failures=1000)

    async def scene() -> None:
        audit = audit_on(store)
        audit.record(entry())
        await audit.close()

    run(scene)
    assert "1 entries of the audit log could not be written" in caplog.text


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(engine_audit, "_WAITING", 3)
    store = FakeStore()

    async def scene() -> None:
        audit = audit_on(store)
        for number in range(5):
            audit.record(entry(str(number)))
        await audit.close()

    run(scene)
    assert [each.target for each in store.entries] == ["2", "3", "4"]
    assert "in this log only" in caplog.text


def test_every_entry_is_in_the_log_at_once(caplog: pytest.LogCaptureFixture) -> None:
    store = FakeStore()

    async def scene() -> None:
        audit = audit_on(store)
        with caplog.at_level(logging.INFO, "kagzi.audit"):
            audit.record(entry())
        (line,) = caplog.records
        assert line.getMessage() == "key:1 x run 1: OK"
        said = {name: getattr(line, name) for name in ("namespace", "peer", "request_id")}
        assert said == {"namespace": "a", "peer": "p", "request_id": "r"}
        assert set(said) <= set(FIELDS), "what is not in there is not printed"
        assert store.entries == []
        await audit.close()

    run(scene)


def test_what_callers_say_neither_breaks_a_line_nor_shows_a_key() -> None:
    key = write_key("0123456789abcdef", bytes(32))
    store = FakeStore()

    async def scene() -> None:
        audit = audit_on(store)
        audit.record(entry(f"run {key}", namespace="a\nb\0c\ud800", peer="x" * 1000))
        await audit.write(entry(f"{key}\n"))
        await audit.close()

    run(scene)
    direct, recorded = store.entries
    assert "0" * 64 not in f"{direct.target} {recorded.target}"
    assert recorded.namespace == "a b c "
    assert len(recorded.peer) == 255
    assert recorded.target == "run kgz_0123456789abcdef_***"
