"""Errors of an app with a codec: nobody else reads them, and everybody who has the key gets them as they were."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

import kagzi
from kagzi import CannotDecode, Kagzi, Retry, WorkflowFailed
from kagzi.codecs import Chain, Compress, Encrypt
from kagzi.core.failure import SEALED, Failure
from kagzi.errors import InvalidRequest
from kagzi.testing import run_virtually
from tests.scenarios.conftest import served

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
SECRET = "4111-1111-1111-1111"


class Declined(Exception):
    def __init__(self, card: str) -> None:
        super().__init__(f"card {card} was declined")
        self.card = card


def shop(url: str, key: bytes = KEY) -> tuple[Kagzi, list[str]]:
    app = Kagzi(url, codec=Chain(Compress(), Encrypt({"1": key}, current="1")))
    told: list[str] = []

    @app.step(retry=Retry(attempts=2, first=0))
    async def charge(card: str) -> None:
        raise Declined(card)

    @app.step
    async def other(card: str) -> str:
        return "other"

    @app.workflow
    async def catches(card: str) -> str:
        try:
            await charge(card)
        except Declined as error:
            await kagzi.sleep("1h")  # parked: what follows is a replay, which reads the stored error
            return f"{error.card} / {error}"
        return "paid"

    @app.workflow
    async def fails(card: str) -> None:
        await charge(card)

    @app.workflow(retry=Retry(attempts=2, first=60))
    async def retries(card: str) -> None:
        raise Declined(card)

    @app.workflow
    async def has_child(card: str) -> str:
        try:
            await fails.run(card)
        except WorkflowFailed as error:
            await kagzi.sleep("1h")
            return str(error.__cause__)
        return "paid"

    @app.workflow
    async def notify(failed: kagzi.FailedRun) -> None:
        told.append(failed.failure.message)

    @app.workflow(on_failure=notify)
    async def notifies(card: str) -> None:
        await charge(card)

    return app, told


def test_errors_come_back_as_they_were() -> None:
    app, told = shop("memory://")

    async def main() -> None:
        flows = {name: app.find_workflow(name, "1") for name in ("catches", "fails", "has_child", "notifies")}
        assert await flows["catches"].run(SECRET) == f"{SECRET} / card {SECRET} was declined"  # type: ignore[union-attr]
        assert await flows["has_child"].run(SECRET) == f"card {SECRET} was declined"  # type: ignore[union-attr]
        run = await flows["notifies"].start(SECRET)  # type: ignore[union-attr]
        with pytest.raises(WorkflowFailed, match=SECRET) as raised:
            await run.result()
        assert isinstance(raised.value.__cause__, Declined)
        assert raised.value.__cause__.card == SECRET
        record = await run.get()
        assert record.error is not None
        assert SECRET in record.error.message
        assert "charge" in record.error.traceback
        assert [SECRET in str(step.error) for step in await run.steps()] == [True, True]
        while not told:
            await asyncio.sleep(0.1)

    run_virtually(app, main)
    assert told == [f"card {SECRET} was declined"]


async def test_the_database_sees_no_error_and_a_wrong_key_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    app, _ = shop(url)
    fails, retries = app.find_workflow("fails", "1"), app.find_workflow("retries", "1")
    assert fails is not None
    assert retries is not None
    async with app, app.worker():
        run = await fails.start(SECRET)
        waiting = await retries.start(SECRET)
        async with asyncio.timeout(60):
            while (failure := (await waiting.get()).error) is None:
                await asyncio.sleep(0.01)
        assert failure.message == f"card {SECRET} was declined"
        with pytest.raises(WorkflowFailed):
            await run.result(timeout=60)
    with sqlite3.connect(tmp_path / "kagzi.db") as connection:
        rows = [bytes(row[0]) for row in connection.execute("SELECT error FROM step_runs WHERE error IS NOT NULL")]
        stored = "\n".join(connection.iterdump())
    connection.close()
    assert SECRET not in stored
    assert "was declined" not in stored
    assert len(rows) == 2
    for row in rows:
        failure = Failure.decode(row)
        assert (failure.message, failure.traceback, failure.args) == (SEALED, "", None)
        assert failure.is_a(Declined)  # policies and searches know the class
    for wrong in (shop(url, OTHER)[0], Kagzi(url)):
        async with wrong:
            handle = wrong.handle(run.id)
            with pytest.raises(WorkflowFailed, match="cannot be read here") as raised:
                await handle.result(timeout=60)
            assert isinstance(raised.value.__cause__, CannotDecode)
            assert [record.error.message for record in (await wrong.runs()).items if record.error] == [SEALED] * 2


async def test_errors_pass_a_server_that_cannot_read_them(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path / 'kagzi.db'}") as url:
        app, told = shop(url)
        notifies = app.find_workflow("notifies", "1")
        assert notifies is not None
        async with app, app.worker():
            run = await notifies.start(SECRET)
            with pytest.raises(WorkflowFailed, match=SECRET):
                await run.result(timeout=60)
            async with asyncio.timeout(60):
                while not told:
                    await asyncio.sleep(0.05)
        async with Kagzi(url) as other:
            failures = [step.error for step in await other.handle(run.id).steps() if step.error is not None]
            assert [(failure.message, failure.is_a(Declined)) for failure in failures] == [(SEALED, True)] * 2
    assert told == [f"card {SECRET} was declined"]


def test_errors_are_redacted_before_they_are_stored() -> None:
    def redact(failure: Failure) -> Failure:
        if failure.is_a(KeyError):
            raise RuntimeError("a mistake in the hook")
        return Failure(failure.type, failure.message.replace(SECRET, "****"), bases=failure.bases)

    app = Kagzi("memory://", redact=redact)

    @app.step(retry=Retry.none)
    async def charge(kind: str) -> None:
        raise KeyError(SECRET) if kind == "key" else ValueError(f"card {SECRET}")

    @app.workflow
    async def checkout(kind: str) -> str:
        try:
            await charge(kind)
        except Exception as error:
            first = str(error)
            await kagzi.sleep("1h")
            return first
        return ""

    @app.workflow
    async def plainly() -> None:
        raise ValueError(f"card {SECRET}")

    async def main() -> None:
        assert await checkout.run("value") == "card ****"  # the workflow sees what a replay will see
        assert SECRET not in await checkout.run("key")
        with pytest.raises(WorkflowFailed, match=r"card \*\*\*\*"):
            await plainly.run()

    run_virtually(app, main)
    with pytest.raises(InvalidRequest, match="redact must be a function"):
        Kagzi("memory://", redact="card")  # type: ignore[arg-type]
