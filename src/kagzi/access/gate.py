"""The gate of a server: every call of every port passes it.

Which keys there are is read from the database every few seconds while calls come in or wait, and never for a single
call. So a key that was revoked is refused within `_OLD_SECONDS`, and calls that wait under it are cut short then. A key
that is not known yet may be a new one: that is looked up at once, a few times in a row and then once a second, whoever
asks.

>>> caller = await gate.admit(action, key=key, namespace=request.namespace, peer=peer)
>>> with gate.call(caller):                # counts it, and ends it should the key be revoked meanwhile
...     namespace = caller.confine(request.namespace)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from kagzi.access.caller import Caller
from kagzi.access.rates import StartRate
from kagzi.access.refusals import STRANGER, Refusals
from kagzi.access.shares import Room, Shares, Turns
from kagzi.access.table import ACTIONS, Rule
from kagzi.api.keys import KeySource, LiveKeys
from kagzi.core.audit import AuditEntry
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.key import Key, Role, read_key
from kagzi.core.namespace import DEFAULT_NAMESPACE, Namespace
from kagzi.errors import KagziError, PermissionDenied, Unauthenticated, Unavailable
from kagzi.ports.interruption import Interruptible

log = logging.getLogger("kagzi.access")

_FRESH_SECONDS: Final = 4.0  # how long a reading of the keys is taken as it is
_OLD_SECONDS: Final = 8.0  # beyond this nobody is let in before there is a new one
_AGAIN_SECONDS: Final = 1.0  # how often unknown keys may cause a reading
_LOOKS: Final = 5  # how many such readings may be saved up: whoever makes several keys uses them at once
_USED_SECONDS: Final = 60.0  # how often it is written down when keys were used
_NAMESPACES: Final = 10_000
CALLS_PER_KEY: Final = 5_000
STREAMS_PER_KEY: Final = 500
# Reads of the database that are under way for callers. Heartbeats, commits, starts and the server's own looks at it are
# not among them, and find it free.
_READS: Final = 16
_READS_PER_KEY: Final = 4
# Bytes of requests that are under way; in memory they are about three times as much.
_BYTES: Final = 128 * 1024 * 1024
_BYTES_PER_KEY: Final = 16 * 1024 * 1024
_ARRIVING_PER_KEY: Final = CALLS_PER_KEY

_NO_KEY: Final = "this server asks for an API key and none was shown; set KAGZI_AUTH_KEY, or send the header " + (
    "`authorization: Bearer kgz_…`"
)
_BAD_KEY: Final = "the API key that was shown is not known, has expired or was revoked"
_NO_SESSION: Final = "the session is over; log in again"
# What unknown keys are compared with, so that they take as long as known ones.
_NOBODY: Final = Key(key_id="", namespace="", role=Role.VIEWER, name="", digest=bytes(32), created_at=0)


class NamespaceLookup(Protocol):
    async def get(self, namespace: str) -> Namespace:
        """Returns the namespace; NotFound if there is none."""
        ...


class Auditor(Protocol):
    def record(self, entry: AuditEntry) -> None: ...


class Gate:
    """Decides about each call by the table and the caller's key. `audit` is given a sample of the refusals. At most so
    many calls and streams of one key are under way at once, and at most so many runs a second are started in one
    namespace (None: as many as anybody likes).

    `streams`, `reads` and the bytes of `room` are shared by all ports."""

    def __init__(
        self,
        keys: KeySource,
        namespaces: NamespaceLookup,
        *,
        audit: Auditor | None = None,
        calls_per_key: int = CALLS_PER_KEY,
        streams_per_key: int = STREAMS_PER_KEY,
        starts_per_second: int | None = None,
    ) -> None:
        self._source = keys
        self._namespaces = namespaces
        self._audit = audit
        self._shares = Shares(calls_per_key, "calls")
        self.streams = Shares(streams_per_key, "streams")
        self.reads = Turns(_READS, _READS_PER_KEY)
        self._arriving = Shares(_ARRIVING_PER_KEY, "requests that have not arrived yet")
        self._bytes = Turns(_BYTES, _BYTES_PER_KEY)
        self._bytes_of_workers = Turns(_BYTES, _BYTES_PER_KEY)
        self._starts = None if starts_per_second is None else StartRate(starts_per_second)
        self._live = LiveKeys(now=0, configured=True, keys={})
        self._read_at = -inf
        self._reading: asyncio.Task[None] | None = None
        self._looks = float(_LOOKS)
        self._looked_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[_Call] = set()
        self._known = {DEFAULT_NAMESPACE}
        self._used: dict[str, Instant] = {}
        self._written_at = -inf
        self._refusals = Refusals()

    async def configured(self) -> bool:
        """Whether keys are asked for at all."""
        return (await self._keys()).configured

    async def admit(
        self,
        action: str,
        *,
        key: str | None,
        session: str | None = None,
        namespace: str | None,
        peer: str,
        request_id: Callable[[], str] = str,
        target: Callable[[], str] = str,
        runs: int = 1,
    ) -> Caller:
        """Returns who calls. Raises Unauthenticated or PermissionDenied, NotFound for a namespace that does not exist,
        or LimitExceeded if runs are being started too fast there.

        `action` is an action of the table, `key` what the caller showed, or the `session` that it has opened with one,
        `namespace` the one its request names (None
        or empty if it names none; `Caller.confine` then says which one is meant). `request_id` and `target` are
        asked for what the audit log shall say of a call that is refused; `runs` is how many one that starts runs would
        start."""
        actor = STRANGER
        try:
            caller = await self._holder(key, peer, session)
            if caller.key_id is not None:
                # From here on it is proven who calls. A key id alone proves nothing: it is no secret.
                actor = caller.actor
            rule = _rule(action, caller)
            meant = caller.confine(namespace or "") or DEFAULT_NAMESPACE
        except (Unauthenticated, PermissionDenied) as error:
            self._refused(error, action, actor, namespace, peer, request_id, target)
            raise
        if caller.key_id is not None and caller.namespace is None and namespace and not rule.everywhere:
            await self._must_exist(namespace)
        if rule.starts and self._starts is not None:
            self._starts.take(meant, runs, asyncio.get_running_loop().time())
        return caller

    async def recognise(
        self, action: str, *, key: str | None, peer: str, request_id: Callable[[], str] = str
    ) -> Caller:
        """Returns the key that a caller shows, before anything of a request is read: strangers are to cost nothing.
        Raises Unauthenticated. What the key opens `admit` is asked once the request is read."""
        try:
            return await self._holder(key, peer)
        except Unauthenticated as error:
            self._refused(error, action, STRANGER, None, peer, request_id, str)
            raise

    def knows_keys(self) -> bool:
        """Whether a caller can be recognised without waiting for the database."""
        return self._age() <= _OLD_SECONDS

    def room(self, action: str, caller: Caller) -> Room:
        """Returns the room in which the bytes of the caller's requests are kept. Those of workers, who must not miss a
        heartbeat for what others send, have a room of their own."""
        rule = ACTIONS.get(action)
        return Room(self._bytes_of_workers if rule is not None and rule.drives else self._bytes, self._arriving, caller)

    def call(self, caller: Caller) -> AbstractContextManager[object, Literal[False]]:
        """Surrounds what is done for a caller: LimitExceeded if too much is under way for it already, Unauthenticated
        in the middle of it should the key be revoked."""
        return _Call(self, caller)

    def part(self, caller: Caller) -> AbstractContextManager[object, Literal[False]]:
        """Surrounds a call that is carried by a stream, which is itself a `call` of the same caller. It is counted like
        one; a key that is revoked ends the stream, and this with it."""
        return _Part(self._shares, caller)

    async def log_in(self, caller: Caller, session: str, lifetime: Span) -> None:
        """Opens a session with the rights of the caller's key."""
        assert caller.key_id is not None
        await self._source.open_session(session, caller.key_id, lifetime)

    async def log_out(self, session: str) -> None:
        """Ends a session: here at once with what is under way, on other servers with their next reading."""
        await self._source.end_session(session)
        self._end_calls(frozenset({session}))

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._write_used()

    # Knowing keys.

    async def _holder(self, text: str | None, peer: str, session: str | None = None) -> Caller:
        live = self._live if self._age() <= _FRESH_SECONDS else await self._keys()
        if not live.configured:
            return Caller(key_id=None, namespace=None, role=Role.ADMIN, peer=peer)
        key = await (self._identify(text) if session is None else self._key_of(session))
        return Caller(key_id=key.key_id, namespace=key.namespace, role=key.role, peer=peer, session=session)

    async def _key_of(self, session: str) -> Key:
        """Returns the key that a session was opened with."""
        key_id = (await self._source.sessions((session,))).get(session)
        key = None if key_id is None else await self._known_key(key_id)
        now = self._now()
        if key is None or not key.live(now):
            raise Unauthenticated(_NO_SESSION)
        self._used[key.key_id] = now
        return key

    async def _identify(self, text: str | None) -> Key:
        if not text:
            raise Unauthenticated(_NO_KEY)
        shown = read_key(text)
        if shown is None:
            raise Unauthenticated(_BAD_KEY)
        key = await self._known_key(shown.key_id)
        right = self._source.matches(key or _NOBODY, shown.secret)
        now = self._now()
        if key is None or not right or not key.live(now):
            raise Unauthenticated(_BAD_KEY)
        self._used[key.key_id] = now
        return key

    async def _known_key(self, key_id: str) -> Key | None:
        if key_id not in self._live.keys and self._may_look():
            if self._reading is not None:  # it may have begun before the key was made
                await self._read()
            if key_id not in self._live.keys:
                await self._read()
        return self._live.keys.get(key_id)

    def _may_look(self) -> bool:
        """Whether an unknown key is worth a reading: guesses must not keep the database busy."""
        now = asyncio.get_running_loop().time()
        self._looks = min(_LOOKS, self._looks + (now - self._looked_at) / _AGAIN_SECONDS)
        self._looked_at = now
        if self._looks < 1:
            return False
        self._looks -= 1
        return True

    async def _keys(self) -> LiveKeys:
        age = self._age()
        if age > _OLD_SECONDS:
            await self._read()
            if self._age() > _OLD_SECONDS:
                raise Unavailable("which keys there are could not be read")
        elif age > _FRESH_SECONDS:
            self._start_reading()
        return self._live

    def _age(self) -> float:
        return asyncio.get_running_loop().time() - self._read_at

    def _now(self) -> Instant:
        """Returns the database's time."""
        return self._live.now + round(self._age() * SECOND)

    async def _read(self) -> None:
        await asyncio.shield(self._start_reading())

    def _start_reading(self) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_keys(), name="kagzi-keys")
        return self._reading

    async def _read_keys(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            began = loop.time()
            self._live = await self._source.live()
            self._read_at = began
            self._end_calls(await self._ended_sessions())
            if self._used and began - self._written_at > _USED_SECONDS:
                self._written_at = began
                await self._write_used()
        except Unavailable as error:
            log.debug("could not read the keys: %s", error)  # whoever needs a newer reading is told
        finally:
            self._reading = None

    async def _write_used(self) -> None:
        used, self._used = self._used, {}
        if used:
            try:
                await self._source.used(used)
            except KagziError as error:
                log.debug("could not write down when keys were used: %s", error)

    async def _must_exist(self, namespace: str) -> None:
        """With keys, namespaces are made by administrators and not by using them."""
        if namespace not in self._known:
            await self._namespaces.get(namespace)
            if len(self._known) >= _NAMESPACES:
                self._known.clear()
            self._known.add(namespace)

    # Calls under way.

    def _begin(self, call: _Call) -> None:
        self._shares.take(call.caller)
        self._calls.add(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FRESH_SECONDS, self._look)

    def _finish(self, call: _Call) -> None:
        self._calls.discard(call)
        self._shares.give(call.caller)

    def _look(self) -> None:
        """Looks whether the keys of waiting calls are still good, for as long as calls wait."""
        self._timer = None
        if self._calls:
            if self._age() > _FRESH_SECONDS / 2:
                self._start_reading()
            self._timer = asyncio.get_running_loop().call_later(_FRESH_SECONDS, self._look)

    async def _ended_sessions(self) -> frozenset[str]:
        """Returns the sessions of calls under way that are over."""
        asked = {call.caller.session for call in self._calls if call.caller.session is not None}
        return frozenset(asked - (await self._source.sessions(tuple(asked))).keys() if asked else ())

    def _end_calls(self, ended: frozenset[str]) -> None:
        now = self._now()
        for call in self._calls:
            key_id = call.caller.key_id
            if call.caller.session in ended:
                good = False
            elif key_id is None:
                good = not self._live.configured
            else:
                key = self._live.keys.get(key_id)
                good = key is not None and key.live(now)
            if not good:
                call.interrupt()

    # Those who were refused.

    def _refused(
        self,
        error: KagziError,
        action: str,
        actor: str,
        namespace: str | None,
        peer: str,
        request_id: Callable[[], str],
        target: Callable[[], str],
    ) -> None:
        if self._audit is None or not self._refusals.notes(actor, peer, asyncio.get_running_loop().time()):
            return
        entry = AuditEntry(
            actor=actor,
            action=action,
            namespace=namespace or None,
            target=target(),
            request_id=request_id(),
            peer=peer,
            result=error.code,
        )
        self._audit.record(entry)


def check_role(action: str, caller: Caller | None) -> None:
    """Raises PermissionDenied for a caller who may make the call, but not do by it what takes this action's right."""
    if caller is not None:
        _rule(action, caller)


def _rule(action: str, caller: Caller) -> Rule:
    """What the table says of an action that the caller may take."""
    rule = ACTIONS.get(action)
    if rule is None:
        raise PermissionDenied("nobody may do this: the action is not known")
    if caller.key_id is None:
        return rule
    if caller.role not in rule.roles:
        needed = " or ".join(role for role in Role if role in rule.roles)
        raise PermissionDenied(f"a key of role {caller.role} may not do this; it needs the role {needed}")
    if rule.everywhere and caller.namespace is not None:
        raise PermissionDenied("this concerns all namespaces, and the key is for one of them only")
    return rule


class _Call(Interruptible):
    __slots__ = ("_gate", "caller")

    def __init__(self, gate: Gate, caller: Caller) -> None:
        super().__init__()
        self._gate = gate
        self.caller = caller

    def __enter__(self) -> Self:
        super().__enter__()
        self._gate._begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self._gate._finish(self)
        if super().__exit__(kind, error, traceback):
            raise Unauthenticated(_BAD_KEY if self.caller.key_id is not None else _NO_KEY) from None
        return False


class _Part:
    __slots__ = ("_caller", "_shares")

    def __init__(self, shares: Shares, caller: Caller) -> None:
        self._shares = shares
        self._caller = caller

    def __enter__(self) -> None:
        self._shares.take(self._caller)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self._shares.give(self._caller)
        return False
