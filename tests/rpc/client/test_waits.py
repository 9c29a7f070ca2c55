"""Waiting for many runs with few calls, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.core.instant import Span
from kagzi.core.run import Run
from kagzi.errors import NotFound, Unavailable
from kagzi.rpc.client.waits import Waiting
from tests.engine.support import run


class Server:
    """Answers when runs are ended; out of reach as long as it is told to be."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.away = False
        self._ended: set[str] = set()
        self._news = asyncio.Event()

    async def ask(self, namespace: str, run_ids: list[str], wait: Span) -> tuple[list[Run], list[str]]:
        del wait
        self.calls.append(run_ids)
        while True:
            if self.away:
                raise Unavailable("the server is away")
            if unknown := [run_id for run_id in run_ids if run_id == "nobody"]:
                return [], unknown
            if ended := [_run(namespace, run_id) for run_id in run_ids if run_id in self._ended]:
                return ended, []
            self._news.clear()
            await self._news.wait()

    def end(self, *run_ids: str) -> None:
        self._ended.update(run_ids)
        self._news.set()

    def break_off(self) -> None:
        self.away = True
        self._news.set()


def _run(namespace: str, run_id: str) -> Run:
    nothing: dict[str, Any] = dict.fromkeys(Run.__struct_fields__)
    return Run(**{**nothing, "namespace": namespace, "run_id": run_id})


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def waiters(waiting: Waiting, count: int) -> list[asyncio.Task[Run]]:
    """Each in a call of its own, as long as there may be another."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(waiting.wait("default", f"run-{number}")))
        await turns()
    return tasks


def test_those_who_begin_to_wait_together_share_a_call() -> None:
    async def main() -> None:
        server = Server()
        waiting = Waiting(server.ask)
        tasks = [asyncio.create_task(waiting.wait("default", name)) for name in ("a", "b", "a")]
        await turns()
        assert server.calls == [["a", "b"]]
        server.end("a")
        assert [(await task).run_id for task in (tasks[0], tasks[2])] == ["a", "a"]
        await turns()
        assert server.calls == [["a", "b"], ["b"]]
        server.end("b")
        await tasks[1]

    run(main)


def test_calls_are_bounded_and_everybody_is_waited_for() -> None:
    async def main() -> None:
        server = Server()
        waiting = Waiting(server.ask)
        tasks = await waiters(waiting, 30)
        server.end(*(f"run-{number}" for number in range(30)))
        assert [(await task).run_id for task in tasks] == [f"run-{number}" for number in range(30)]

    run(main)


def test_a_server_that_is_back_soon_is_waited_for_however_many_calls_failed_with_it() -> None:
    async def main() -> None:
        server = Server()
        waiting = Waiting(server.ask)
        tasks = await waiters(waiting, 8)
        assert len(server.calls) == 8
        server.break_off()
        await asyncio.sleep(1.5)
        server.away = False
        server.end(*(f"run-{number}" for number in range(8)))
        assert [(await task).run_id for task in tasks] == [f"run-{number}" for number in range(8)]

    run(main)


def test_those_who_wait_for_a_server_that_stays_away_are_told() -> None:
    async def main() -> None:
        server = Server()
        waiting = Waiting(server.ask)
        tasks = await waiters(waiting, 8)
        began = asyncio.get_running_loop().time()
        server.break_off()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [Unavailable] * 8
        assert len({id(error) for error in errors}) == 8
        assert 2 <= asyncio.get_running_loop().time() - began <= 4
        assert len(server.calls) < 100  # no hammering

    run(main)


def test_an_unknown_run_is_said_to_be_unknown() -> None:
    async def main() -> None:
        server = Server()
        waiting = Waiting(server.ask)
        other = asyncio.create_task(waiting.wait("default", "a"))
        with pytest.raises(NotFound, match="nobody"):
            await waiting.wait("default", "nobody")
        server.end("a")
        assert (await other).run_id == "a"

    run(main)
