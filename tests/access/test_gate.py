"""The gate, on virtual time, with keys in a dictionary."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from kagzi.access import Caller, Gate, Role, rates
from kagzi.access.rates import StartRate
from kagzi.api.keys import LiveKeys
from kagzi.core.audit import AuditEntry
from kagzi.core.instant import SECOND, Instant, Span
from kagzi.core.key import Key, digest, mask_keys, read_key, write_key
from kagzi.core.namespace import Namespace
from kagzi.errors import LimitExceeded, NotFound, PermissionDenied, Unauthenticated, Unavailable
from kagzi.testing.virtual import VirtualLoop

START = "/kagzi.v1.WorkflowService/StartWorkflow"
GET = "/kagzi.v1.WorkflowService/GetWorkflow"
CANCEL = "/kagzi.v1.WorkflowService/CancelWorkflow"
POLL = "/kagzi.v1.WorkerService/PollTasks"
CREATE = "/kagzi.v1.NamespaceService/CreateNamespace"


class Database:
    """Keys, namespaces and the audit log; counts what it is asked."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self.reads = 0
        self.away = False
        self.takes = 0.001
        self.last_used: list[dict[str, Instant]] = []
        self.entries: list[AuditEntry] = []
        self.compared = 0
        self.opened: dict[str, str] = {}

    def make(self, role: Role = Role.CLIENT, namespace: str | None = "a", **fields: Any) -> str:
        key_id = f"{len(self.keys):016x}"
        secret = bytes([len(self.keys) + 1]) * 32
        self.keys[key_id] = Key(
            key_id=key_id,
            namespace=namespace,
            role=role,
            name="",
            digest=digest(key_id, secret),
            created_at=0,
            **fields,
        )
        return write_key(key_id, secret)

    def revoke(self, key: str) -> None:
        shown = read_key(key)
        assert shown is not None
        self.keys[shown.key_id] = replace(self.keys[shown.key_id], revoked_at=1)

    async def live(self) -> LiveKeys:
        self.reads += 1
        await asyncio.sleep(self.takes)
        if self.away:
            raise Unavailable("away")
        now = round(asyncio.get_running_loop().time() * SECOND)
        return LiveKeys(
            now=now,
            configured=bool(self.keys),
            keys={key_id: key for key_id, key in self.keys.items() if key.live(now)},
        )

    def matches(self, key: Key, secret: bytes) -> bool:
        self.compared += 1
        return hmac.compare_digest(key.digest, digest(key.key_id, secret))

    async def used(self, at: dict[str, Instant]) -> None:
        self.last_used.append(dict(at))

    async def open_session(self, session_id: str, key_id: str, lifetime: Span) -> None:
        self.opened[session_id] = key_id

    async def sessions(self, session_ids: Sequence[str]) -> dict[str, str]:
        return {session_id: self.opened[session_id] for session_id in session_ids if session_id in self.opened}

    async def end_session(self, session_id: str) -> None:
        self.opened.pop(session_id, None)

    async def get(self, namespace: str) -> Namespace:
        if namespace not in ("default", "a", "b"):
            raise NotFound(f"there is no namespace {namespace}")
        return Namespace(namespace=namespace, display_name="", description="", enabled=True, created_at=0, updated_at=0)

    def record(self, entry: AuditEntry) -> None:
        self.entries.append(entry)


Play = Callable[[Database, Gate], Coroutine[Any, Any, None]]


def play(scene: Play, **options: Any) -> Database:
    database = Database()

    async def main() -> None:
        gate = Gate(database, database, audit=database, **options)
        try:
            await scene(database, gate)
        finally:
            await gate.close()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    return database


def admit(
    gate: Gate, action: str, key: str | None, namespace: str = "", peer: str = "ipv4:127.0.0.1:1"
) -> Awaitable[Caller]:
    return gate.admit(action, key=key, namespace=namespace, peer=peer)


async def admitted(gate: Gate, key: str) -> bool:
    try:
        await admit(gate, GET, key, "a")
    except Unauthenticated:
        return False
    return True


def test_without_keys_everybody_may_do_everything() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        caller = await admit(gate, CREATE, None, "anything")
        assert (caller.key_id, caller.namespace, caller.role, caller.actor) == (None, None, Role.ADMIN, "anyone")
        with pytest.raises(PermissionDenied):
            await admit(gate, "/kagzi.v1.WorkflowService/Unheard", None)

    play(scene)


def test_a_key_of_one_namespace() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make()
        caller = await admit(gate, START, key, "a")
        assert (caller.namespace, caller.role, caller.confine(""), caller.confine("a")) == ("a", Role.CLIENT, "a", "a")
        assert (await admit(gate, START, key)).confine("") == "a"
        for namespace in ("b", "default", "nowhere"):
            with pytest.raises(PermissionDenied):
                await admit(gate, START, key, namespace)
        with pytest.raises(PermissionDenied, match="role client may not do this; it needs the role admin or worker"):
            await admit(gate, POLL, key, "a")

    play(scene)


def test_an_admin_of_one_namespace_makes_no_others() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        with pytest.raises(PermissionDenied, match="all namespaces"):
            await admit(gate, CREATE, database.make(Role.ADMIN), "a")

    play(scene)


def test_a_key_for_all_namespaces_makes_none_by_using_them() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make(Role.ADMIN, None)
        assert (await admit(gate, START, key, "b")).confine("b") == "b"
        assert (await admit(gate, START, key)).confine("") == ""
        with pytest.raises(NotFound):
            await admit(gate, START, key, "new")
        await admit(gate, CREATE, key, "new")

    play(scene)


def test_wrong_keys_are_all_wrong_in_the_same_way() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make()
        expired = database.make(expires_at=1)
        revoked = database.make(revoked_at=1)
        messages = set()
        wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
        unknown = write_key("f" * 16, bytes(32))
        for shown in (wrong, unknown, expired, revoked, "kgz_x", "hunter2", key.upper(), key + "0"):
            with pytest.raises(Unauthenticated) as caught:
                await admit(gate, START, shown, "a")
            messages.add(str(caught.value))
            assert shown not in str(caught.value)
        assert len(messages) == 1
        for missing in (None, ""):
            with pytest.raises(Unauthenticated, match="none was shown"):
                await admit(gate, START, missing, "a")

    database = play(scene)
    assert database.compared >= 4  # those that are not known are compared as well
    assert not [entry for entry in database.entries if "kgz" in str(entry)]


def test_revoking_the_last_key_does_not_open_the_server() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        database.revoke(database.make())
        with pytest.raises(Unauthenticated):
            await admit(gate, START, None)

    play(scene)


def test_keys_are_read_now_and_then_and_not_for_every_call() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make()
        for _ in range(1000):
            await admit(gate, GET, key, "a")
            await asyncio.sleep(0.01)
        assert database.reads <= 5  # in ten seconds
        reads = database.reads
        await asyncio.sleep(3600)
        assert database.reads == reads  # nobody calls, nobody asks

    play(scene)


def test_guessing_keys_does_not_keep_the_database_busy() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        database.make()
        for number in range(1000):
            with pytest.raises(Unauthenticated):
                await admit(gate, GET, write_key(f"{number:016x}", bytes(32)), "a")
            await asyncio.sleep(0.01)
        assert database.reads <= 16  # one a second, and a few to begin with

    play(scene)


def test_new_keys_open_at_once_also_right_after_a_reading() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        for _ in range(5):  # a script that makes keys and uses each of them
            await admit(gate, GET, database.make(), "a")

    play(scene)


def test_a_key_opens_that_was_made_while_the_keys_were_being_read() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make()
        await admit(gate, GET, key, "a")
        await asyncio.sleep(5)
        live, began = database.live, asyncio.Event()

        async def slowly() -> LiveKeys:
            found = await live()
            began.set()
            await asyncio.sleep(0.1)
            return found

        database.live = slowly  # type: ignore[method-assign]
        await admit(gate, GET, key, "a")  # has them read again, beside it
        await began.wait()
        await admit(gate, GET, database.make(), "a")

    play(scene)


def test_a_new_key_opens_within_seconds_of_guesses_and_a_revoked_one_closes_within_ten() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        await admit(gate, GET, database.make(), "a")
        for number in range(100):
            assert not await admitted(gate, write_key(f"{number + 1:x}".rjust(16, "f"), bytes(32)))
        fresh = database.make()
        await asyncio.sleep(1.1)
        await admit(gate, GET, fresh, "a")
        database.revoke(fresh)
        began = asyncio.get_running_loop().time()
        while await admitted(gate, fresh):
            await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() - began < 10

    play(scene)


def test_calls_that_wait_are_cut_short() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make(Role.WORKER)
        caller = await admit(gate, POLL, key, "a")
        await asyncio.sleep(1.1)
        other = await admit(gate, POLL, database.make(Role.WORKER), "a")

        async def wait(who: Caller) -> None:
            with gate.call(who):
                await asyncio.sleep(60)

        waiting, staying = asyncio.ensure_future(wait(caller)), asyncio.ensure_future(wait(other))
        await asyncio.sleep(20)
        assert not waiting.done()
        database.revoke(key)
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unauthenticated):
            await waiting
        assert asyncio.get_running_loop().time() - began < 10
        await staying

    database = play(scene)
    assert database.reads < 60


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_session_that_is_over_lets_nobody_in_and_ends_what_waits(elsewhere: bool) -> None:
    async def scene(database: Database, gate: Gate) -> None:
        loop = asyncio.get_running_loop()
        caller = await gate.admit(GET, key=database.make(), namespace=None, peer="p")
        await gate.log_in(caller, "mine", SECOND)
        await gate.log_in(caller, "other", SECOND)
        mine, other = [
            await gate.admit(GET, key=None, session=session, namespace=None, peer="p") for session in ("mine", "other")
        ]
        assert (mine.key_id, mine.role, mine.namespace) == (caller.key_id, caller.role, caller.namespace)

        async def wait(waiting: Caller) -> None:
            with gate.call(waiting):
                await asyncio.sleep(60)

        waits = [asyncio.create_task(wait(waiting)) for waiting in (mine, other)]
        await asyncio.sleep(0)
        began = loop.time()
        await (database.end_session("mine") if elsewhere else gate.log_out("mine"))
        with pytest.raises(Unauthenticated, match="over"):
            await gate.admit(GET, key=None, session="mine", namespace=None, peer="p")
        with pytest.raises(Unauthenticated):
            await waits[0]
        assert loop.time() - began < (10 if elsewhere else 0.1)
        await waits[1]

    play(scene)


def test_what_was_read_slowly_is_as_old_as_its_question() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make()
        database.takes = 7.0
        await admit(gate, GET, key, "a")
        # That is longer than a reading is taken as it is: somebody may have revoked the key since, so ask again.
        await admit(gate, GET, key, "a")
        await asyncio.sleep(0)
        assert database.reads == 2

    play(scene)


def test_an_expired_key_is_refused_on_time() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make(expires_at=2 * SECOND)
        await admit(gate, GET, key, "a")
        await asyncio.sleep(2)
        with pytest.raises(Unauthenticated):
            await admit(gate, GET, key, "a")

    play(scene)


def test_the_first_key_closes_an_open_server() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        caller = await admit(gate, POLL, None, "a")

        async def wait() -> None:
            with gate.call(caller):
                await asyncio.sleep(60)

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(5)
        database.make()
        await asyncio.sleep(10)
        with pytest.raises(Unauthenticated):
            await waiting
        with pytest.raises(Unauthenticated):
            await admit(gate, POLL, None, "a")

    play(scene)


@pytest.mark.parametrize("surround", [Gate.call, Gate.part])
def test_too_many_calls_of_one_key(surround: Callable[[Gate, Caller], AbstractContextManager[object]]) -> None:
    async def scene(database: Database, gate: Gate) -> None:
        one = await admit(gate, GET, database.make(), "a")
        await asyncio.sleep(1.1)
        two = await admit(gate, GET, database.make(), "a")
        with surround(gate, one), gate.call(one):
            with pytest.raises(LimitExceeded):
                with surround(gate, one):
                    pass
            with surround(gate, two):
                pass
        with gate.call(one), gate.call(one):
            pass

    play(scene, calls_per_key=2)


def test_runs_are_started_no_faster_than_that_in_one_namespace() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        a, b = database.make(), database.make(namespace="b")
        many = database.make(namespace=None)

        async def starts(key: str, action: str = START, **more: Any) -> bool:
            try:
                await gate.admit(action, key=key, namespace="", peer="", **more)
            except LimitExceeded:
                return False
            return True

        for _ in range(3):  # however long nothing was started, a second's worth and no more
            assert [await starts(a) for _ in range(11)] == [True] * 10 + [False]
            await asyncio.sleep(5)
        assert [await starts(a) for _ in range(11)].count(True) == 10
        assert await starts(b)
        assert await starts(many)  # which means `default`
        assert await starts(a, GET)
        assert await starts(a, CANCEL)
        assert not await starts(a, "/kagzi.v1.WorkflowService/RetryWorkflow")
        # What a call takes too much is waited for by the next.
        await asyncio.sleep(1)
        assert await starts(a, "/kagzi.v1.WorkflowService/StartWorkflows", runs=30)
        await asyncio.sleep(1.9)
        assert not await starts(a)
        await asyncio.sleep(0.3)
        assert await starts(a)

    play(scene, starts_per_second=10)


def test_who_starts_nothing_for_a_second_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_REMEMBERED", 2)
    rate = StartRate(1)
    for number in range(5):
        rate.take(f"old-{number}", 1, now=0.0)
    rate.take("new", 1, now=2.0)
    assert set(rate._namespaces) == {"new"}


def test_a_database_that_is_away_lets_nobody_in() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make()
        await admit(gate, GET, key, "a")
        database.away = True
        await asyncio.sleep(5)
        await admit(gate, GET, key, "a")  # a reading a few seconds old will do
        await asyncio.sleep(5)
        with pytest.raises(Unavailable):
            await admit(gate, GET, key, "a")
        database.away = False
        await admit(gate, GET, key, "a")

    play(scene)


def test_when_a_key_was_used_is_written_once_a_minute() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make()
        for _ in range(180):
            await admit(gate, GET, key, "a")
            await asyncio.sleep(1)
        assert 3 <= len(database.last_used) <= 4

    database = play(scene)
    assert database.last_used[-1]["0" * 16] > 178 * SECOND


def test_refusals_are_sampled() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        key = database.make(Role.VIEWER)
        for _ in range(1000):
            with pytest.raises(PermissionDenied):
                await admit(gate, CANCEL, key, "a")
        await asyncio.sleep(61)
        with pytest.raises(Unauthenticated):
            await admit(gate, CANCEL, None, "a")

    database = play(scene)
    assert len(database.entries) == 21
    first, last = database.entries[0], database.entries[-1]
    assert (first.actor, first.action, first.namespace, first.result) == (
        f"key:{'0' * 16}",
        CANCEL,
        "a",
        "PERMISSION_DENIED",
    )
    assert (last.actor, last.result, last.peer) == ("nobody", "UNAUTHENTICATED", "ipv4:127.0.0.1:1")


def test_a_wrong_secret_is_not_told_as_a_call_of_the_key_it_names() -> None:
    async def scene(database: Database, gate: Gate) -> None:
        victim = read_key(database.make(Role.ADMIN))
        assert victim is not None
        with pytest.raises(Unauthenticated):
            await admit(gate, CANCEL, write_key(victim.key_id, bytes(32)), "a")

    (entry,) = play(scene).entries
    assert (entry.actor, entry.result) == ("nobody", "UNAUTHENTICATED")


def test_guesses_do_not_take_the_place_of_what_a_key_was_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(database: Database, gate: Gate) -> None:
        keys = [database.make(Role.VIEWER), database.make(Role.VIEWER)]
        for host in range(30):
            for port in range(30):
                with pytest.raises(Unauthenticated):
                    await admit(gate, CANCEL, None, "a", peer=f"ipv4:10.0.0.{host}:{port}")
        for key in keys:
            for _ in range(30):
                with pytest.raises(PermissionDenied):
                    await admit(gate, CANCEL, key, "a")

    entries = play(scene).entries
    assert Counter(entry.actor for entry in entries) == {"nobody": 20, f"key:{'0' * 16}": 20, f"key:{1:016x}": 20}
    assert Counter(entry.peer.rpartition(":")[0] for entry in entries[:20]) == {
        f"ipv4:10.0.0.{host}": 5 for host in range(4)
    }
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4 + 1 + 2  # the hosts that had their part, everybody else, and the keys
    assert "calls of host 10.0.0.0 are refused faster than the audit log notes them: some are left out" in told


def test_keys_are_masked_in_text() -> None:
    key = write_key("0123456789abcdef", bytes(32))
    assert mask_keys(f"grpcs://:{key}@host and {key}!") == (
        "grpcs://:kgz_0123456789abcdef_***@host and kgz_0123456789abcdef_***!"
    )
