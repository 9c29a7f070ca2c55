"""API keys and the audit log."""

from __future__ import annotations

import pytest

from kagzi.api.keys import AuditFilter
from kagzi.core.audit import AuditEntry
from kagzi.core.instant import SECOND
from kagzi.core.key import Key, Role, key_position
from kagzi.core.page import Cursor
from kagzi.store.postgres import keys as postgres_keys
from kagzi.store.sqlite import keys as sqlite_keys
from kagzi.testing.conformance.bench import Bench

_DIGEST = bytes(range(32))


def _key(key_id: str, namespace: str | None = "default", role: Role = Role.CLIENT) -> Key:
    return Key(key_id=key_id, namespace=namespace, role=role, name="for tests", digest=_DIGEST, created_at=0)


def _entry(target: str, actor: str = "cli:test", namespace: str | None = "default") -> AuditEntry:
    return AuditEntry(
        actor=actor, action="test", namespace=namespace, target=target, request_id="r", peer="p", result="OK"
    )


class TestKeys:
    async def test_none_are_configured_at_first(self, bench: Bench) -> None:
        live = await bench.store.keys.live()
        assert (live.now, live.configured, live.keys) == (bench.now(), False, {})

    async def test_a_key_is_stored_with_its_entry(self, bench: Bench) -> None:
        made = await bench.store.keys.create(_key("a", None, Role.ADMIN), 10 * SECOND, _entry("key a"))
        assert made == Key(
            key_id="a",
            namespace=None,
            role=Role.ADMIN,
            name="for tests",
            digest=_DIGEST,
            created_at=bench.now(),
            expires_at=bench.now() + 10 * SECOND,
        )
        assert await bench.store.keys.get("a") == made
        assert (await bench.store.keys.live()).keys == {"a": made}
        (entry,) = await bench.store.audit.page(AuditFilter(), None, 10)
        assert (entry.at, entry.actor, entry.target, entry.result) == (bench.now(), "cli:test", "key a", "OK")

    async def test_dead_keys_still_count_as_configured(self, bench: Bench) -> None:
        await bench.store.keys.create(_key("short"), SECOND, _entry(""))
        await bench.store.keys.create(_key("revoked"), None, _entry(""))
        revoked = await bench.store.keys.revoke("revoked", _entry("key revoked"))
        assert revoked is not None
        assert revoked.revoked_at == bench.now()
        bench.clock.advance(SECOND)
        live = await bench.store.keys.live()
        assert (live.configured, live.keys) == (True, {})
        assert await bench.store.keys.revoke("revoked", _entry("")) == revoked
        assert await bench.store.keys.revoke("nobody", _entry("")) is None

    async def test_sessions_last_until_they_end_are_ended_or_are_too_many(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = bench.store.keys
        for module in (sqlite_keys, postgres_keys):
            monkeypatch.setattr(module, "SESSIONS_PER_KEY", 2)
        await keys.open_session("a1", "a", 10 * SECOND)
        await keys.open_session("b1", "b", SECOND)
        assert await keys.sessions(("a1", "b1", "c1")) == {"a1": "a", "b1": "b"}
        bench.clock.advance(SECOND)
        assert await keys.sessions(("a1", "b1")) == {"a1": "a"}
        await keys.open_session("a2", "a", 10 * SECOND)
        await keys.end_session("a2")
        await keys.end_session("a2")
        assert await keys.sessions(("a1", "a2")) == {"a1": "a"}
        for number in (3, 4):
            bench.clock.advance(SECOND)
            await keys.open_session(f"a{number}", "a", 10 * SECOND)
        assert await keys.sessions(("a1", "a3", "a4")) == {"a3": "a", "a4": "a"}

    async def test_rotation_leaves_the_old_one_some_time(self, bench: Bench) -> None:
        old = await bench.store.keys.create(_key("old", "team", Role.WORKER), None, _entry(""))
        bench.clock.advance(SECOND)
        other = bytes(32)
        new = await bench.store.keys.rotate("old", 5 * SECOND, "new", other, _entry("key old by new"))
        assert new is not None
        assert (new.namespace, new.role, new.name, new.digest) == ("team", Role.WORKER, old.name, other)
        assert (new.created_at, new.expires_at) == (bench.now(), None)
        assert set((await bench.store.keys.live()).keys) == {"old", "new"}
        bench.clock.advance(5 * SECOND)
        assert set((await bench.store.keys.live()).keys) == {"new"}
        assert await bench.store.keys.rotate("old", SECOND, "newer", other, _entry("")) is None
        assert (await bench.store.audit.page(AuditFilter(namespace="team"), None, 10))[0].target == "key old by new"

    async def test_a_successor_lives_as_long_and_never_prolongs(self, bench: Bench) -> None:
        await bench.store.keys.create(_key("short"), 10 * SECOND, _entry(""))
        bench.clock.advance(8 * SECOND)
        new = await bench.store.keys.rotate("short", 60 * SECOND, "next", _DIGEST, _entry(""))
        assert new is not None
        assert new.expires_at == bench.now() + 10 * SECOND
        old = await bench.store.keys.get("short")
        assert old is not None
        assert old.expires_at == bench.now() + 2 * SECOND

    async def test_they_are_listed_newest_first(self, bench: Bench) -> None:
        for key_id, namespace in (("a", "one"), ("b", "one"), ("c", "two"), ("d", None)):
            await bench.store.keys.create(_key(key_id, namespace), None, _entry(""))
            if key_id != "a":
                bench.clock.advance(SECOND)
        keys = await bench.store.keys.page(None, None, 3)
        assert [key.key_id for key in keys] == ["d", "c", "b"]
        rest = await bench.store.keys.page(None, Cursor(key_position(keys[-1])), 3)
        assert [key.key_id for key in rest] == ["a"]
        assert [key.key_id for key in await bench.store.keys.page("one", None, 9)] == ["b", "a"]

    async def test_the_latest_use_counts(self, bench: Bench) -> None:
        await bench.store.keys.create(_key("used"), None, _entry(""))
        await bench.store.keys.touch({"used": 20, "nobody": 20})
        await bench.store.keys.touch({"used": 10})
        key = await bench.store.keys.get("used")
        assert key is not None
        assert key.last_used_at == 20


class TestAuditLog:
    async def test_entries_are_listed_newest_first(self, bench: Bench) -> None:
        await bench.store.audit.append([_entry("1"), _entry("2", actor="key:x"), _entry("3", namespace=None)])
        entries = await bench.store.audit.page(AuditFilter(), None, 2)
        assert [entry.target for entry in entries] == ["3", "2"]
        assert (entries[0].at, entries[0].namespace, entries[0].request_id, entries[0].peer) == (
            bench.now(),
            None,
            "r",
            "p",
        )
        rest = await bench.store.audit.page(AuditFilter(), Cursor(entries[-1].entry_id), 2)
        assert [entry.target for entry in rest] == ["1"]

    async def test_entries_are_found_by_namespace_and_actor(self, bench: Bench) -> None:
        await bench.store.audit.append([_entry("1", namespace="one"), _entry("2", actor="key:x", namespace="one")])
        both = AuditFilter(namespace="one", actor="key:x")
        assert [entry.target for entry in await bench.store.audit.page(both, None, 9)] == ["2"]
        assert await bench.store.audit.page(AuditFilter(namespace="two"), None, 9) == []
