"""Making keys, and telling a right one from a wrong one."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator

import pytest

from kagzi.core.instant import SECOND
from kagzi.core.key import Role, read_key
from kagzi.engine import keys as engine_keys
from kagzi.engine.keys import Keys
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, LimitExceeded, NotFound
from kagzi.store.sqlite import SqliteStore


@pytest.fixture
async def keys() -> AsyncIterator[Keys]:
    store = SqliteStore(None)
    await store.open()
    yield Keys(store, EngineSettings())
    await store.close()


async def test_secrets_are_compared_in_constant_time(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def compare(mine: bytes, shown: bytes) -> bool:
        nonlocal compared
        compared += 1
        return hmac_compare(mine, shown)

    hmac_compare = hmac.compare_digest
    made = await keys.create(name="x", role=Role.CLIENT, namespace="default", actor="test")
    shown = read_key(made.text)
    assert shown is not None
    monkeypatch.setattr(engine_keys.hmac, "compare_digest", compare)
    assert keys.matches(made.key, shown.secret)
    assert not keys.matches(made.key, bytes(32))
    assert compared == 2
    assert shown.secret not in made.key.digest


async def test_a_key_lives_for_a_time_that_makes_sense(keys: Keys) -> None:
    for lifetime in (0, -1, 10**18):
        with pytest.raises(InvalidRequest):
            await keys.create(name="x", role=Role.CLIENT, namespace=None, actor="test", expires_in=lifetime)
    made = await keys.create(name="x", role=Role.CLIENT, namespace=None, actor="test", expires_in=SECOND)
    assert made.key.expires_at == made.key.created_at + SECOND
    for overlap in (-1, 10**18):
        with pytest.raises(InvalidRequest):
            await keys.rotate(made.key.key_id, overlap=overlap, actor="test")


async def test_a_key_is_for_a_namespace_that_exists(keys: Keys) -> None:
    with pytest.raises(NotFound):
        await keys.create(name="x", role=Role.CLIENT, namespace="nowhere", actor="test")
    assert (await keys.list()).items == ()


async def test_live_keys_are_bounded_and_dead_ones_are_not_counted(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_keys, "MOST_LIVE", 2)
    first = await keys.create(name="1", role=Role.CLIENT, namespace=None, actor="test")
    await keys.create(name="2", role=Role.CLIENT, namespace=None, actor="test")
    with pytest.raises(LimitExceeded):
        await keys.create(name="3", role=Role.CLIENT, namespace=None, actor="test")
    await keys.revoke(first.key.key_id, actor="test")
    await keys.create(name="3", role=Role.CLIENT, namespace=None, actor="test")
