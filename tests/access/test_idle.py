"""A server that asks for keys and whose callers all wait leaves the database alone, too."""

from __future__ import annotations

import asyncio

from kagzi.access import Gate, Role
from kagzi.core.instant import SECOND
from tests.engine.support import cancel, count_calls, new_engine, new_poll, new_registration, new_start, run

POLL = "/kagzi.v1.WorkerService/PollTasks"
WAIT = "/kagzi.v1.WorkflowService/WaitWorkflows"


def test_an_idle_server_with_keys_asks_at_most_twice_a_second() -> None:
    async def main() -> None:
        async with new_engine(coordinate=True) as engine:
            gate = Gate(engine.keys, engine.namespaces, audit=engine.audit)
            key = (await engine.keys.create(name="x", role=Role.WORKER, namespace="default", actor="test")).text
            await engine.workers.register(new_registration())
            remote = await engine.workflows.start(new_start(engine, task_queue="elsewhere"))

            async def wait() -> None:
                caller = await gate.admit(WAIT, key=key, namespace="default", peer="")
                with gate.call(caller):
                    await engine.workflows.wait("default", remote.run_id, 600 * SECOND)

            async def poll() -> None:
                caller = await gate.admit(POLL, key=key, namespace="default", peer="")
                with gate.call(caller):
                    await engine.workers.poll(new_poll(wait=600 * SECOND))

            tasks = [asyncio.create_task(wait()), asyncio.create_task(poll())]
            await asyncio.sleep(5.5)
            calls = count_calls(engine.store)  # type: ignore[arg-type]
            await asyncio.sleep(100)
            assert 0 < calls["keys.live"] <= 26
            assert calls.total() <= 200, calls
            await cancel(*tasks)
            await gate.close()

    run(main)
