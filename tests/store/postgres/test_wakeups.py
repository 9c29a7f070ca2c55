from __future__ import annotations

import asyncio

import pytest

from kagzi.store.postgres.store import PostgresStore
from kagzi.store.postgres.wakeups import payloads

pytestmark = pytest.mark.postgres


def test_payloads_stay_below_the_servers_limit() -> None:
    pairs = [("default", f"queue-{number}-é") for number in range(600)]
    texts = payloads(pairs)
    assert len(texts) > 1
    assert all(len(text.encode()) < 8000 for text in texts)
    assert payloads([]) == []
    assert payloads([("a", "b"), ("a", "b")]) == ['[["a","b"]]']


def test_too_many_become_everything() -> None:
    assert payloads(("default", f"00000000-0000-7000-8000-{number:012x}") for number in range(10_000)) == ["*"]


async def test_other_processes_hear_and_we_do_not_hear_ourselves(postgres_database: str) -> None:
    ours, theirs = PostgresStore(postgres_database), PostgresStore(postgres_database)
    await ours.open()
    heard: dict[str, list[object]] = {"ours": [], "theirs": []}
    ready = {"ours": asyncio.Event(), "theirs": asyncio.Event()}

    def listen(store: PostgresStore, name: str) -> asyncio.Task[None]:
        def on_finished(namespace: str, run_id: str) -> None:
            heard[name].append((namespace, run_id))

        return asyncio.create_task(store.wakeups.listen(heard[name].append, on_finished, ready[name].set))

    tasks = [listen(ours, "ours"), listen(theirs, "theirs")]
    async with asyncio.timeout(60):
        await ready["ours"].wait()
        await ready["theirs"].wait()
        await ours.wakeups.announce([("default", "a 'quoted' queue")], [("default", "run-1")])
        await theirs.wakeups.announce([("default", "done")], [])
        while len(heard["theirs"]) < 2 or not heard["ours"]:
            await asyncio.sleep(0.01)

    assert heard["theirs"] == [("default", "a 'quoted' queue"), ("default", "run-1")]
    assert heard["ours"] == [("default", "done")]
    await ours.close()
    await theirs.close()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)


async def test_too_much_to_tell_means_anything_may_have_changed(postgres_database: str) -> None:
    ours, theirs = PostgresStore(postgres_database), PostgresStore(postgres_database)
    await ours.open()
    unknown: asyncio.Queue[bool] = asyncio.Queue()
    task = asyncio.create_task(
        theirs.wakeups.listen(lambda _: None, lambda _, __: None, lambda: unknown.put_nowait(True))
    )
    async with asyncio.timeout(60):
        await unknown.get()
        await ours.wakeups.announce([], [("default", f"{number:036}") for number in range(5_000)])
        await unknown.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ours.close()
    await theirs.close()
