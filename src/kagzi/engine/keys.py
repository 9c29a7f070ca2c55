"""API keys: making, rotating, revoking, and telling a right one from a wrong one."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

from kagzi.api.keys import LiveKeys, NewKey
from kagzi.core.audit import OK, AuditEntry
from kagzi.core.duration import LONGEST
from kagzi.core.instant import Instant, Span
from kagzi.core.key import KEY_ID_BYTES, MOST_LIVE, SECRET_BYTES, Key, Role, digest, key_position, write_key
from kagzi.core.limits import DEFAULT_PAGE_SIZE, check_name
from kagzi.core.page import BY_TIME, Page
from kagzi.engine.checks import check_home
from kagzi.engine.listing import Listing
from kagzi.engine.settings import EngineSettings
from kagzi.errors import InvalidRequest, LimitExceeded, NotFound
from kagzi.ids import fresh_secret
from kagzi.store.protocol.store import Store


class Keys:
    """`api.keys.KeyService` over a store."""

    def __init__(self, store: Store, settings: EngineSettings, entropy: Callable[[int], bytes] = fresh_secret) -> None:
        self._store = store
        self._listing = Listing(store.page_secret, key_position, BY_TIME)
        self._pepper = settings.key_pepper
        self._entropy = entropy

    # What a gate asks.

    async def live(self) -> LiveKeys:
        return await self._store.keys.live()

    def matches(self, key: Key, secret: bytes) -> bool:
        return hmac.compare_digest(key.digest, digest(key.key_id, secret, self._pepper))

    async def used(self, at: dict[str, Instant]) -> None:
        await self._store.keys.touch(at)

    async def open_session(self, session_id: str, key_id: str, lifetime: Span) -> None:
        await self._store.keys.open_session(session_id, key_id, lifetime)

    async def sessions(self, session_ids: Sequence[str]) -> dict[str, str]:
        return await self._store.keys.sessions(session_ids)

    async def end_session(self, session_id: str) -> None:
        await self._store.keys.end_session(session_id)

    # What administrators ask.

    async def create(
        self, *, name: str, role: Role, namespace: str | None, actor: str, expires_in: Span | None = None
    ) -> NewKey:
        check_name(name, "name")
        if namespace is not None:
            check_name(namespace, "namespace")
            if await self._store.namespaces.get(namespace) is None:
                raise NotFound(f"there is no namespace {namespace}; `kagzi namespaces create` makes one")
        if expires_in is not None and not 0 < expires_in <= LONGEST:
            raise InvalidRequest("a key must live for longer than 0 seconds and at most 1000 years")
        if len((await self._store.keys.live()).keys) >= MOST_LIVE:
            raise LimitExceeded.lasting(f"there are {MOST_LIVE:,} live keys, and no more are allowed; revoke some")
        key_id, secret = self._fresh()
        key = Key(
            key_id=key_id,
            namespace=namespace,
            role=role,
            name=name,
            digest=digest(key_id, secret, self._pepper),
            created_at=0,
        )
        entry = _entry(actor, "keys create", namespace, f"key {key_id}")
        made = await self._store.keys.create(key, expires_in, entry)
        return NewKey(made, write_key(key_id, secret))

    async def get(self, key_id: str) -> Key:
        return _found(await self._store.keys.get(check_name(key_id, "key id")), key_id)

    async def list(
        self, *, namespace: str | None = None, page_size: int = DEFAULT_PAGE_SIZE, page_token: str | None = None
    ) -> Page[Key]:
        check_home(namespace)
        about = f"keys {namespace!r}"
        cursor = self._listing.begin(page_size, page_token, about)
        rows = await self._store.keys.page(namespace, cursor, page_size + 1)
        return self._listing.page(rows, page_size, about)

    async def rotate(self, key_id: str, *, overlap: Span, actor: str) -> NewKey:
        check_name(key_id, "key id")
        if not 0 <= overlap <= LONGEST:
            raise InvalidRequest("the overlap must not be negative, and at most 1000 years")
        new_id, secret = self._fresh()
        entry = _entry(actor, "keys rotate", None, f"key {key_id} by {new_id}")
        made = await self._store.keys.rotate(key_id, overlap, new_id, digest(new_id, secret, self._pepper), entry)
        if made is None:
            raise NotFound(f"there is no live key {key_id}; a key that has ended is not rotated, make a new one")
        return NewKey(made, write_key(new_id, secret))

    async def revoke(self, key_id: str, *, actor: str) -> Key:
        check_name(key_id, "key id")
        entry = _entry(actor, "keys revoke", None, f"key {key_id}")
        return _found(await self._store.keys.revoke(key_id, entry), key_id)

    def _fresh(self) -> tuple[str, bytes]:
        return self._entropy(KEY_ID_BYTES).hex(), self._entropy(SECRET_BYTES)


def _found(key: Key | None, key_id: str) -> Key:
    if key is None:
        raise NotFound(f"there is no key {key_id}")
    return key


def _entry(actor: str, action: str, namespace: str | None, target: str) -> AuditEntry:
    return AuditEntry(actor=actor, action=action, namespace=namespace, target=target, request_id="", peer="", result=OK)
