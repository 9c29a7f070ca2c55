"""Which of several servers is used, and when the next one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from kagzi import InvalidRequest, Unavailable
from kagzi._proto.v1 import admin_pb2
from kagzi.connect import connect
from kagzi.errors import LimitExceeded, Unauthenticated
from kagzi.rpc.client import failover
from kagzi.rpc.client.channel import AioChannel, Channel, ThreadChannel
from kagzi.rpc.client.failover import Choice, FailoverChannel
from kagzi.rpc.client.remote import RemoteEngine
from tests.rpc.support import serving
from tests.rpc.test_compatibility import OtherServer, other_server

REQUEST = admin_pb2.GetServerInfoRequest()


class Server:
    """`channel.Channel` that answers as it is told."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.connects: list[float] = []
        self.closed = False

    async def call(self, *_: object) -> Any:
        await asyncio.sleep(0)
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error
        return self

    async def connect(self, seconds: float) -> None:
        self.connects.append(seconds)
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error

    async def close(self) -> None:
        self.closed = True


def saying(version: str) -> OtherServer:
    return OtherServer(GetServerInfo=admin_pb2.GetServerInfoResponse(version=version))


async def info_of(channel: Channel) -> admin_pb2.GetServerInfoResponse:
    return await channel.call("AdminService", "GetServerInfo", REQUEST, admin_pb2.GetServerInfoResponse, 5.0)


async def ask(channel: FailoverChannel) -> object:
    return await info_of(channel)


async def test_the_next_one_is_used_after_one_has_failed_and_until_that_fails() -> None:
    first, second = Server(None, Unavailable()), Server(None, None, Unavailable())
    channel = FailoverChannel([lambda: first, lambda: second], "a:1,b:1")
    assert await ask(channel) is first
    with pytest.raises(Unavailable):
        await ask(channel)
    assert await ask(channel) is second
    assert await ask(channel) is second
    with pytest.raises(Unavailable):
        await ask(channel)
    assert await ask(channel) is first


async def test_callers_whose_calls_failed_together_go_on_together() -> None:
    first, second, third = Server(*[Unavailable()] * 3), Server(), Server()
    channel = FailoverChannel([lambda: first, lambda: second, lambda: third], "a:1,b:1,c:1")
    failed = await asyncio.gather(*[ask(channel) for _ in range(3)], return_exceptions=True)
    assert [type(error) for error in failed] == [Unavailable] * 3
    assert await ask(channel) is second


async def test_heartbeats_leave_a_server_together_with_everything_else() -> None:
    choice = Choice(2)
    calls = FailoverChannel([lambda: Server(Unavailable()), Server], "a:1,b:1", choice)
    beats = FailoverChannel([Server, lambda: Server(Unavailable())], "a:1,b:1", choice)
    with pytest.raises(Unavailable):
        await ask(calls)
    with pytest.raises(Unavailable):
        await ask(beats)
    assert choice.used == 0
    engine = RemoteEngine("a:1,b:1")
    sibling = engine.sibling()
    assert (sibling._servers, sibling._choice) == (engine._servers, engine._choice)


async def test_a_single_server_is_left_for_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its name there may be others, and a connection stays with one of them."""
    monkeypatch.setattr(failover, "_NEW_CHANNEL_SECONDS", 0.0)
    made = [Server(Unavailable()), Server()]
    makes = iter(made)
    channel = FailoverChannel([lambda: next(makes)], "a:1")
    with pytest.raises(Unavailable):
        await ask(channel)
    assert await ask(channel) is made[1]
    await channel.close()


async def test_who_comes_back_to_a_server_comes_by_a_new_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one may be waiting before it tries to connect again."""
    monkeypatch.setattr(failover, "_NEW_CHANNEL_SECONDS", 0.0)
    made: list[Server] = []

    def make() -> Server:
        made.append(Server(Unavailable()) if len(made) < 2 else Server())
        return made[-1]

    channel = FailoverChannel([make, make], "a:1,b:1")
    old = list(made)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await ask(channel)
    assert await ask(channel) is made[2]
    assert [server.closed for server in old] == [True, True]
    await channel.close()
    assert all(server.closed for server in made)


async def test_a_channel_that_was_left_stays_open_for_the_calls_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_NEW_CHANNEL_SECONDS", 0.0)
    answered = asyncio.Event()

    class Slow(Server):
        calls = 0

        async def call(self, *_: object) -> Any:
            self.calls += 1
            if self.calls == 1:
                await asyncio.sleep(0)  # until the other call has begun
                raise Unavailable
            await answered.wait()
            return self

    slow = Slow()
    makes = iter([slow, Server()])
    channel = FailoverChannel([lambda: next(makes), Server], "a:1,b:1")
    failing, waiting = asyncio.create_task(ask(channel)), asyncio.create_task(ask(channel))
    with pytest.raises(Unavailable):
        await failing
    await asyncio.sleep(0)
    assert not slow.closed
    answered.set()
    assert await waiting is slow
    await asyncio.sleep(0)
    assert slow.closed
    await channel.close()


@pytest.mark.parametrize("error", [LimitExceeded("too much"), Unauthenticated("no key"), InvalidRequest("no sense")])
async def test_a_server_that_refuses_is_not_left(error: Exception) -> None:
    first, second = Server(error), Server()
    channel = FailoverChannel([lambda: first, lambda: second], "a:1,b:1")
    with pytest.raises(type(error)):
        await ask(channel)
    assert await ask(channel) is first


async def test_connecting_takes_turns() -> None:
    first, second = Server(Unavailable(), Unavailable()), Server(Unavailable())
    channel = FailoverChannel([lambda: first, lambda: second], "a:1,b:1")
    await channel.connect(10.0)
    assert (first.connects, second.connects) == ([0.25, 0.5], [0.25, 0.5])
    assert await ask(channel) is second
    await channel.close()
    assert first.closed
    assert second.closed


async def test_what_is_wrong_with_one_is_said_if_no_other_can_be_used() -> None:
    untrusted = Unauthenticated("the certificate is not trusted")
    await FailoverChannel([lambda: Server(untrusted), lambda: Server()], "a:1,b:1").connect(10.0)
    with pytest.raises(Unauthenticated):
        await FailoverChannel([lambda: Server(untrusted), lambda: Server(Unavailable())], "a:1,b:1").connect(10.0)


async def test_nobody_is_there() -> None:
    channel = FailoverChannel(
        [lambda: AioChannel("127.0.0.1:1"), lambda: AioChannel("127.0.0.1:2")], "127.0.0.1:1,127.0.0.1:2"
    )
    with pytest.raises(Unavailable, match=r"no Kagzi server at 127\.0\.0\.1:1, 127\.0\.0\.1:2\. "):
        await channel.connect(0.3)
    await channel.close()


async def test_a_channel_on_threads_goes_on_at_its_first_call() -> None:
    async with serving("memory://") as server:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and says nothing
            targets = ["127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}", server.target]
            channel = FailoverChannel([partial(ThreadChannel, target) for target in targets], ",".join(targets))
            await channel.connect(10.0)
            for target in targets[:-1]:
                with pytest.raises(Unavailable, match=target):
                    await info_of(channel)
            assert (await info_of(channel)).version
            await channel.close()


async def test_callers_spread_over_the_servers() -> None:
    async with serving("memory://") as one, serving("memory://") as two:
        seen = set()
        for _ in range(40):
            async with RemoteEngine(f"{one.target},{two.target}") as engine:
                line = engine._opened._line
                assert isinstance(line.channel, FailoverChannel)
                used = line.channel._channels[line.channel._choice.used]
                assert isinstance(used, AioChannel)
                seen.add(used._target)
        assert seen == {one.target, two.target}


@pytest.mark.parametrize("make", [AioChannel, ThreadChannel])
async def test_grpc_itself_goes_on_with_another_address_of_a_name(make: type[AioChannel] | type[ThreadChannel]) -> None:
    """A name with several addresses is, after it was resolved, a list like this."""
    async with serving("memory://") as one, serving("memory://") as two:
        channel = make(f"ipv4:{one.target},{two.target}")
        try:
            assert (await info_of(channel)).version
            await one.stop(0.0)
            assert (await _info_at_last(channel)).version
        finally:
            await channel.close()


async def _info_at_last(channel: AioChannel | ThreadChannel) -> admin_pb2.GetServerInfoResponse:
    """Asks again until gRPC has noticed that a server has gone: calls that are on their way till then are lost."""
    async with asyncio.timeout(30):
        while True:
            with suppress(Unavailable):
                return await info_of(channel)


async def test_grpc_chooses_among_the_addresses_of_a_name_by_chance() -> None:
    async with other_server(saying("1")) as one, other_server(saying("2")) as two:
        seen = set()
        for _ in range(40):
            channel = AioChannel(f"ipv4:{one},{two}")
            seen.add((await info_of(channel)).version)
            await channel.close()
        assert seen == {"1", "2"}


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("grpc://one,two", "one:50051,two:50051"),
        ("grpc://one:7233,two:7233/", "one:7233,two:7233"),
        ("grpcs://one:7233,[::1]:7234,[::2]", "one:7233,[::1]:7234,[::2]:50051"),
    ],
)
def test_urls_with_several_servers(url: str, target: str) -> None:
    engine = connect(url)
    assert isinstance(engine, RemoteEngine)
    assert engine._target == target


@pytest.mark.parametrize(
    "url", ["grpc://one,", "grpc://,two", "grpc://one,two:port", "grpc://one,two:99999", "grpc://"]
)
def test_urls_that_name_no_servers(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"grpc://"):
        connect(url)
