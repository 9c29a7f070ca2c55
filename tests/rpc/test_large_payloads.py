"""Payloads that a server does not store: somebody is told, and nothing is done again and again for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import kagzi
from kagzi import Cron, Kagzi
from kagzi.api.operations import ChunkAnswer
from kagzi.api.reply import Reply, settled
from kagzi.connect import connect
from kagzi.core.instant import SECOND
from kagzi.engine.local import LocalEngine
from kagzi.errors import InvalidRequest, PayloadTooLarge, WorkflowFailed
from kagzi.rpc.limits import MESSAGE_BYTES, PAYLOAD_BYTES
from kagzi.rpc.server.server import RpcServer


@asynccontextmanager
async def server_of(payload_bytes: int) -> AsyncIterator[RpcServer]:
    engine = connect("memory://", payload_bytes=payload_bytes, tick=SECOND // 10)
    assert isinstance(engine, LocalEngine)
    await engine.open()
    try:
        async with RpcServer(engine) as server:
            yield server
    finally:
        await engine.close()


class Program:
    """A step that returns so many bytes, alone and with a workflow that survives its failure."""

    def __init__(self, server: RpcServer) -> None:
        self.app = app = Kagzi(f"grpc://{server.target}")
        self.bodies = 0

        @app.step
        async def make(size: int) -> str:
            self.bodies += 1
            return "x" * size

        @app.workflow
        async def keep(size: int) -> int:
            return len(await make(size))

        @app.workflow
        async def survive(size: int) -> str:
            try:
                await make(size)
            except PayloadTooLarge as error:
                return str(error)
            return "stored"

        @app.workflow
        async def large(size: int) -> str:
            return "x" * size

        @app.workflow
        async def echo(text: str) -> str:
            return text

        self.keep, self.survive, self.large, self.echo = keep, survive, large, echo


@pytest.mark.parametrize(
    ("server_bytes", "worker_bytes", "size"),
    [(1000, 2_000_000, 5000), (2_000_000, 1000, 5000), (64 << 20, 64 << 20, PAYLOAD_BYTES + 1)],
)
async def test_the_smallest_limit_on_the_way_counts(
    server_bytes: int, worker_bytes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGZI_PAYLOAD_WARN_THRESHOLD_BYTES", "1000")
    monkeypatch.setenv("KAGZI_PAYLOAD_MAX_SIZE_BYTES", str(worker_bytes))
    async with server_of(server_bytes) as server:
        program = Program(server)
        async with program.app, program.app.worker():
            told = await program.survive.run(size)
            limit = min(server_bytes, worker_bytes, PAYLOAD_BYTES)
            assert f"step make returned {size + 2:,} bytes; at most {limit:,} are stored" in told
            with pytest.raises(WorkflowFailed, match=r"the result of large is .* bytes"):
                await program.large.run(size)
            assert program.bodies == 1


async def test_what_fits_into_no_message_is_refused_before_it_is_sent() -> None:
    async with server_of(64 << 20) as server:
        program = Program(server)
        async with program.app:
            with pytest.raises(PayloadTooLarge, match=f"at most {MESSAGE_BYTES:,} go to a server in one message"):
                await program.echo.start("x" * (MESSAGE_BYTES + 1))
            assert (await program.app.runs()).items == ()


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_run_whose_progress_is_refused_for_good_fails(refusals: int) -> None:
    """A server may refuse what a worker has found nothing wrong with. Should it refuse that the run failed, too, the
    run is let go of."""
    async with server_of(2_000_000) as server:
        program = Program(server)
        async with program.app, program.app.worker() as worker:
            commit: Any = worker.commit
            left = [InvalidRequest("output of step make has a colour nobody likes") for _ in range(refusals)]

            def refusing(chunk: Any) -> Reply[ChunkAnswer]:
                return settled(left.pop()) if left else commit(chunk)

            worker.commit = refusing
            run = await program.keep.start(10)
            if refusals == 1:
                with pytest.raises(WorkflowFailed, match="a colour nobody likes"):
                    await run.result(timeout=20)
                assert program.bodies == 1
            else:
                while left or worker._held:
                    await asyncio.sleep(0.01)
                assert not (await run.get()).status.finished


async def test_signals_and_the_inputs_of_forks_may_be_as_large_as_other_payloads() -> None:
    async with server_of(PAYLOAD_BYTES) as server:
        app = Kagzi(f"grpc://{server.target}")

        @app.workflow
        async def measure(text: str) -> int:
            return len(text) + len(await kagzi.wait_signal("more", str))

        large = "x" * (PAYLOAD_BYTES // 2)
        async with app, app.worker():
            run = await measure.start("")
            await run.signal("more", large)
            assert await run.result(timeout=60) == len(large)
            fork = await run.fork(input=(large,))
            await fork.signal("more", large)
            assert await fork.result(timeout=60) == 2 * len(large)


async def test_the_input_of_a_declared_schedule_may_be_as_large_as_other_payloads() -> None:
    async with server_of(PAYLOAD_BYTES) as server:
        app, large = Kagzi(f"grpc://{server.target}"), "x" * (PAYLOAD_BYTES // 2)

        @app.workflow(schedule=Cron("@yearly", args=[large]))
        async def report(text: str) -> None: ...

        async with app, app.worker():
            (schedule,) = (await app.schedules.list()).items
            assert schedule.workflow == "report"
