"""A rolling deploy under load: workers of version 1 are replaced by workers of 1 and 2, and those by workers of 2. The
code of version 1 is changed on the way, in the order of its steps. No run is lost, and no step is done twice."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from kagzi import Handle, Kagzi
from tests.faults.processes import ROOT, until
from tests.warm import Process, Warm, clean_environ

HEAD = """
import kagzi
app = kagzi.Kagzi({url!r})

def note(what):
    with open({ledger!r}, "a") as ledger:
        ledger.write(what + "\\n")

@app.step
def charge(order: str) -> str:
    note(f"{{order}} charge")
    return "paid"

@app.step
async def reserve(order: str) -> str:
    note(f"{{order}} reserve")
    return "reserved"

@app.step
async def mail(order: str) -> str:
    note(f"{{order}} mail")
    return "mailed"
"""
OLD = """
@app.workflow(name="checkout", version="1")
async def checkout_v1(order: str) -> list[str]:
    paid = await charge(order)
    await kagzi.sleep(1.5)
    return [paid, await reserve(order), await mail(order)]
"""
REORDERED = """
@app.workflow(name="checkout", version="1")
async def checkout_v1(order: str) -> list[str]:
    reserved = await reserve(order)
    paid = await charge(order)
    await kagzi.sleep(1.5)
    return [paid, reserved, await mail(order)]
"""
NEW = """
@app.workflow(version="2")
async def checkout(order: str) -> list[str]:
    done = [await mail(order)]
    await kagzi.sleep(1.5)
    return [*done, await reserve(order), await charge(order)]
"""
ENDS = {"1": ["paid", "reserved", "mailed"], "2": ["mailed", "reserved", "paid"]}


class Releases:
    """Worker processes of several releases of one program."""

    def __init__(self, directory: Path, url: str, warm: Warm) -> None:
        self.ledger = directory / "ledger"
        self._directory = directory
        self._warm = warm
        self._head = HEAD.format(url=url, ledger=str(self.ledger))
        self._workers: list[Process] = []
        self._number = 0

    async def start(self, *versions: str) -> Process:
        self._number += 1
        program = self._directory / f"release_{self._number}.py"
        program.write_text(self._head + "".join(versions))
        log = self._directory / f"release-{self._number}.log"
        with log.open("wb") as out:
            worker = self._warm.start(
                ["-m", "kagzi", "worker", str(program)],
                directory=ROOT,
                environ=clean_environ(),
                stdout=out.fileno(),
                stderr=out.fileno(),
            )
        self._workers.append(worker)
        await until(lambda: "is up" in log.read_text() or worker.poll() is not None, "the worker is up")
        assert worker.poll() is None, log.read_text()
        return worker

    async def replace(self, old: Process, *versions: str) -> Process:
        """One worker by another: the new one comes first, then the old one drains."""
        new = await self.start(*versions)
        old.send_signal(signal.SIGTERM)
        await until(lambda: old.poll() is not None, "the old worker has drained")
        assert old.returncode == 0
        return new

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
async def test_a_rolling_deploy_under_load_loses_nothing(url: str, tmp_path: Path, warm: Warm) -> None:
    app = Kagzi(url)

    @app.workflow(name="checkout", version="1")
    async def first(order: str) -> list[str]:
        raise AssertionError(f"{order} is executed elsewhere")

    @app.workflow(name="checkout", version="2")
    async def second(order: str) -> list[str]:
        raise AssertionError(f"{order} is executed elsewhere")

    runs: list[tuple[str, Handle[list[str]]]] = []
    version = "1"
    over = asyncio.Event()

    async def load() -> None:
        while not over.is_set():
            workflow = first if version == "1" else second
            runs.append((version, await workflow.start(f"order-{len(runs)}")))
            await asyncio.sleep(0.02)

    releases = Releases(tmp_path, url, warm)
    try:
        async with app:
            workers = [await releases.start(OLD) for _ in range(2)]
            starting = asyncio.create_task(load())
            await asyncio.sleep(1)
            workers = [await releases.replace(worker, REORDERED, NEW) for worker in workers]
            version = "2"  # those who start follow when every worker can serve it
            await asyncio.sleep(1)
            async with asyncio.timeout(60):
                while any(each.version == "1" and not each.can_be_retired for each in await app.versions("checkout")):
                    await asyncio.sleep(0.1)
            workers = [await releases.replace(worker, NEW) for worker in workers]
            await asyncio.sleep(0.5)
            over.set()
            await starting
            for asked, run in runs:
                assert await run.result(timeout=60) == ENDS[asked], run.id
    finally:
        releases.close()
    assert {asked for asked, _ in runs} == {"1", "2"}
    done = Counter(releases.ledger.read_text().splitlines())
    expected = {f"order-{number} {step}" for number in range(len(runs)) for step in ("charge", "reserve", "mail")}
    assert done.keys() == expected
    assert set(done.values()) == {1}
