"""Keys that change and keys that are refused, as clients and workers live through it."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from kagzi import InvalidRequest, Kagzi, KagziError
from kagzi.access import Role
from kagzi.connect import Credentials, connect
from kagzi.core.instant import SECOND
from kagzi.errors import PermissionDenied, Unauthenticated, Unavailable
from kagzi.rpc.client.authorization import KeyInFile
from kagzi.sdk.definitions import Workflow
from kagzi.sdk.worker.refusals import Refusals
from tests.rpc.guarded import guarded
from tests.rpc.support import SHORT

ONE, TWO = f"kgz_{'1' * 16}_{'a' * 64}", f"kgz_{'2' * 16}_{'b' * 64}"


class Clock:
    def __init__(self) -> None:
        self.at = 0

    def monotonic(self) -> int:
        return self.at


def key_id(key: str) -> str:
    return key.split("_")[1]


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def test_a_key_in_a_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "key", Clock()
    file.write_text(f"{ONE}\n")
    key = KeyInFile(str(file), clock.monotonic)
    assert key() == bearer(ONE)
    file.write_text(f"{TWO}\n")
    os.utime(file, ns=(1, 1))  # a clock too coarse to tell the two apart
    assert key() == bearer(ONE)
    clock.at += SECOND
    assert key() == bearer(TWO)
    with caplog.at_level(logging.ERROR):
        for wrong in ("", "hunter2", None):
            file.unlink() if wrong is None else file.write_text(wrong)
            clock.at += SECOND
            assert key() == bearer(TWO)
            clock.at += SECOND
            assert key() == bearer(TWO)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the API key from before stays in use"
    ] * 3
    assert "hunter2" not in caplog.text
    file.write_text(ONE)
    clock.at += SECOND
    assert key() == bearer(ONE)


@pytest.mark.parametrize(("text", "words"), [("", "empty"), ("hunter2", "holds no API key"), (None, "cannot be read")])
def test_a_file_without_a_key_is_refused_at_once(text: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidRequest, match=f"KAGZI_AUTH_KEY_FILE names a file that .*{words}"):
        connect("grpc://127.0.0.1:1", credentials=Credentials(key_file=str(file)))


async def test_rotating_a_key_in_a_file_interrupts_nobody(tmp_path: Path) -> None:
    file = tmp_path / "key"
    async with guarded("memory://") as server:
        old = await server.key()
        file.write_text(old)
        engine = connect(f"grpc://{server.server.target}", credentials=Credentials(key_file=str(file)))
        await engine.open()
        try:
            await engine.namespaces.list()
            rotated = await server.engine.keys.rotate(key_id(old), overlap=SECOND // 10, actor="test")
            file.write_text(rotated.text)
            async with asyncio.timeout(10):
                while await refused(server.server.target, old) is None:
                    await server.gate._read()
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1.0)  # when the file is looked at again at the latest
            await engine.namespaces.list()
        finally:
            await engine.close()


async def refused(target: str, key: str) -> KagziError | None:
    engine = connect(f"grpc://{target}", credentials=Credentials(key=key))
    await engine.open()
    try:
        await engine.namespaces.list()
    except KagziError as error:
        return error
    finally:
        await engine.close()
    return None


def test_a_worker_is_patient_for_the_length_of_its_lease() -> None:
    clock = Clock()
    refusals = Refusals(clock.monotonic)
    revoked, wrong_role = Unauthenticated("revoked"), PermissionDenied("a viewer")
    assert refusals.final(revoked, 30) is None
    clock.at = 29
    assert refusals.final(wrong_role, 30) is None
    assert refusals.final(Unavailable("gone"), 30) is None
    clock.at = 30
    assert refusals.final(Unavailable("gone"), 30) is None
    assert refusals.final(wrong_role, 30) is wrong_role
    refusals.answered()
    assert refusals.final(revoked, 30) is None
    clock.at = 60
    assert refusals.final(revoked, 30) is revoked


def patient_app(target: str, key: str, number: int, begun: list[int]) -> tuple[Kagzi, Workflow[[], int]]:
    app = Kagzi(f"grpc://{target}", key=key)

    @app.step
    async def wait() -> int:
        begun.append(number)
        if number == 0:
            await asyncio.sleep(3600)
        return number

    @app.workflow
    async def patient() -> int:
        return await wait()

    return app, patient


async def test_a_worker_whose_key_was_revoked_gives_up_and_others_go_on() -> None:
    async with guarded("memory://", lease=SHORT) as server:
        keys = [await server.key(Role.WORKER, "default") for _ in range(2)]
        begun: list[int] = []
        first, patient = patient_app(server.server.target, keys[0], 0, begun)
        second, _ = patient_app(server.server.target, keys[1], 1, begun)
        async with second, first:
            async with first.worker() as worker:
                run = await patient.start()
                async with asyncio.timeout(10):
                    while begun != [0]:
                        await asyncio.sleep(0.01)
                await server.engine.keys.revoke(key_id(keys[0]), actor="test")
                await server.gate._read()
                async with asyncio.timeout(60), second.worker():
                    await worker.told_to_stop.wait()
                    refusal = worker.refusal
                    assert isinstance(refusal, Unauthenticated)
                    assert "has refused this worker for 3s: the API key that was shown is not known" in str(refusal)
                    assert not worker._held
                    assert await second.handle(run.id).result(timeout=10) == 1
        assert begun == [0, 1]
