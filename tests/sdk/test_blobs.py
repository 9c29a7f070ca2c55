"""Where large payloads are kept: what a missing, forbidden or changed store says, and what becomes of runs then."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kagzi
from kagzi import CannotDecode, Kagzi, Retry, Unavailable
from kagzi.codecs import Chain, Compress, DirectoryBlobs, Encrypt, Offload, S3Blobs
from kagzi.core.run import RunStatus
from kagzi.errors import InvalidRequest
from kagzi.testing.kit import Environment
from tests.sdk.values import CONTEXT

LARGE = "x" * 1000


def test_a_directory_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    offload = Offload(DirectoryBlobs(tmp_path / "file"), above=1)
    with pytest.raises(Unavailable, match=r"cannot be written to: .*\. It must be there, with room in it"):
        offload.encode(b"large", CONTEXT)
    with pytest.raises(Unavailable, match="cannot be read"):
        offload.decode(b"\x04" + b"a" * 64, CONTEXT)
    unmounted = Offload(DirectoryBlobs(tmp_path / "nowhere"), above=1)
    with pytest.raises(Unavailable, match="cannot be read"):  # perhaps it is there tomorrow
        unmounted.decode(b"\x04" + b"a" * 64, CONTEXT)
    there = Offload(DirectoryBlobs(tmp_path), above=1)
    with pytest.raises(CannotDecode, match="not in the store"):
        there.decode(b"\x04" + b"a" * 64, CONTEXT)


@pytest.mark.skipif(sys.platform == "win32", reason="rights of another kind")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_kept_is_for_its_owner_alone(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        DirectoryBlobs(tmp_path / "above" / "blobs").put("ab" * 32, b"large")
    finally:
        os.umask(before)
    rights = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "above").rglob("*")}
    assert rights == {"blobs": 0o700, "ab": 0o700, "ab" * 32: 0o600}


def test_nothing_half_written_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="No space left"):
        DirectoryBlobs(tmp_path).put("ab" * 32, b"large")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    monkeypatch.undo()
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    if Path("/proc/self/fd").is_dir():
        DirectoryBlobs(tmp_path).put("cd" * 32, b"large")
        assert str(tmp_path / "cd") in synced  # its name, too
        assert str(tmp_path) in synced


@pytest.mark.parametrize(
    "make",
    [
        lambda: DirectoryBlobs(5),  # type: ignore[arg-type]
        lambda: DirectoryBlobs(""),
        lambda: Offload("/tmp"),  # type: ignore[arg-type]
        lambda: Offload(DirectoryBlobs),  # type: ignore[arg-type]
        lambda: Offload(DirectoryBlobs("x"), above=-1),
        lambda: Offload(DirectoryBlobs("x"), above="1k"),  # type: ignore[arg-type]
        lambda: S3Blobs("s3://payloads"),
        lambda: S3Blobs(""),
        lambda: S3Blobs("payloads", prefix="/shop"),
        lambda: S3Blobs("payloads", client="s3"),
        lambda: S3Blobs("payloads", client=object(), region="eu-central-1"),
        lambda: Compress(above="1k"),  # type: ignore[arg-type]
        lambda: Compress(above=True),
        lambda: Encrypt({1: b"x" * 32}, current=1),  # type: ignore[dict-item, arg-type]
        lambda: Encrypt([b"x" * 32], current="a"),  # type: ignore[arg-type]
        lambda: Chain(Compress(), 5),  # type: ignore[arg-type]
        lambda: Kagzi("memory://", codec=Compress),  # type: ignore[arg-type]
    ],
)
def test_silly_stores_are_refused_when_they_are_made(make: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"must be|leave them or client out"):
        make()


# S3, pretended.


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    moto = pytest.importorskip("moto")
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with moto.mock_aws():
        import boto3

        boto3.client("s3").create_bucket(Bucket="payloads")
        yield "payloads"


def test_payloads_are_objects_of_a_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    offload = Offload(S3Blobs(bucket, prefix="shop/"), above=10)
    reference = offload.encode(b"x" * 100, CONTEXT)
    assert (offload.encode(b"x" * 100, CONTEXT), len(reference)) == (reference, 65)
    assert offload.decode(reference, CONTEXT) == b"x" * 100
    key = f"shop/{reference[1:].decode()}"
    s3 = boto3.client("s3")
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    s3.put_object(Bucket=bucket, Key=key, Body=b"y" * 100)
    with pytest.raises(CannotDecode, match="changed in its store"):
        offload.decode(reference, CONTEXT)
    s3.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(CannotDecode, match="not in the store of this app"):
        offload.decode(reference, CONTEXT)
    # Threads share one client; a process that was forked makes its own. (The pretended S3 is not for threads.)
    blobs = S3Blobs(bucket)
    found: list[Any] = []
    many = [threading.Thread(target=lambda: found.append(blobs._client())) for _ in range(8)]
    for thread in many:
        thread.start()
    for thread in many:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert blobs._client() is not found[0]


def test_a_bucket_that_cannot_be_used_says_what_to_do(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = S3Blobs("nowhere")
    for use in (lambda: missing.put("a" * 64, b"x"), lambda: missing.get("a" * 64)):
        with pytest.raises(Unavailable, match=r"'nowhere' cannot be .*there is no such bucket; make it"):
            use()
    from botocore.exceptions import ClientError, NoCredentialsError

    class Refusing:
        error: Exception

        def put_object(self, **_: Any) -> None:
            raise self.error

        get_object = put_object

    client = Refusing()
    blobs = S3Blobs(bucket, client=client)
    denied = {"Error": {"Code": "AccessDenied", "Message": "no"}}
    for error, words in (
        (ClientError(denied, "PutObject"), "s3:PutObject"),  # type: ignore[arg-type]
        (NoCredentialsError(), "AWS_ACCESS_KEY_ID"),
    ):
        client.error = error
        for use in (lambda: blobs.put("a" * 64, b"x"), lambda: blobs.get("a" * 64)):
            with pytest.raises(Unavailable, match=words):
                use()
    nobody = S3Blobs(bucket, endpoint_url="http://127.0.0.1:1", region="us-east-1")
    monkeypatch.setattr("botocore.endpoint.Endpoint._get_response", _unreachable)
    with pytest.raises(Unavailable, match="Could not connect"):
        nobody.put("a" * 64, b"x")


def _unreachable(*_: Any, **__: Any) -> Any:
    from botocore.exceptions import EndpointConnectionError

    return None, EndpointConnectionError(endpoint_url="http://127.0.0.1:1")


# What becomes of runs.


class Flaky:
    """A store that can be out of reach, and counts what it is asked."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.puts = 0
        self.out_of_reach = 0  # so many calls from now on
        self.failing_gets: list[int] = []

    def fail_get(self, nth: int) -> None:
        """Has one of the next calls of `get` fail, counted in each claim anew: the others succeed."""
        self.failing_gets.append(nth)

    def put(self, key: str, data: bytes) -> None:
        self.puts += 1
        self._check()
        self.kept[key] = data

    def get(self, key: str) -> bytes:
        self._check()
        if self.failing_gets:
            self.failing_gets[0] -= 1
            if not self.failing_gets[0]:
                self.failing_gets.pop(0)
                self.out_of_reach = 1
                self._check()
        return self.kept[key]

    def _check(self) -> None:
        if self.out_of_reach:
            self.out_of_reach -= 1
            raise Unavailable("the store is out of reach")


class Shop:
    def __init__(self, *, retry: Retry | None = None) -> None:
        self.blobs = Flaky()
        # Ciphertext is another every time: what is encoded again is kept again.
        codec = Chain(Encrypt({"a": b"x" * 32}, current="a"), Offload(self.blobs, above=500))
        self.app = Kagzi("memory://", codec=codec)
        self.charged = 0

        @self.app.step(retry=retry)
        async def charge(text: str) -> str:
            self.charged += 1
            return text.upper()

        @self.app.workflow
        async def checkout(text: str) -> str:
            done = await charge(text)
            await kagzi.sleep("a day", "1d")
            return await charge(done) + await kagzi.wait_signal("more", str)

        self.checkout = checkout


def test_runs_outlive_a_store_that_is_out_of_reach(kagzi_env: Environment) -> None:
    shop = Shop()
    shop.blobs.out_of_reach = 1
    with pytest.raises(Unavailable):
        kagzi_env.start(shop.checkout, LARGE)
    assert kagzi_env.runs() == []  # nothing was written
    run = kagzi_env.start(shop.checkout, LARGE)
    shop.blobs.out_of_reach = 3  # reading the input, over and over, and then keeping what a step was given
    kagzi_env.advance("1m")
    assert (run.status, shop.charged) == (RunStatus.SLEEPING, 1)
    # Reading the input; then, in the middle of replay, what a step has returned.
    for nth in (1, 2):
        shop.blobs.fail_get(nth)
    kagzi_env.advance("1d")
    assert not shop.blobs.failing_gets
    run.signal("more", LARGE)
    assert run.result() == LARGE.upper() + LARGE
    assert shop.charged == 2


def test_a_result_that_cannot_be_kept_is_a_failed_attempt(kagzi_env: Environment) -> None:
    shop = Shop(retry=Retry.fixed("1s", attempts=3))
    run = kagzi_env.start(shop.checkout, LARGE)
    shop.blobs.out_of_reach = 0
    puts = shop.blobs.puts

    def once(key: str, data: bytes, real: Any = shop.blobs.put) -> None:
        if shop.charged == 1:
            raise Unavailable("the store is out of reach")
        real(key, data)

    shop.blobs.put = once  # type: ignore[method-assign]
    run.signal("more", "")
    assert run.result() == LARGE.upper()
    assert shop.charged == 3
    assert [(step.attempt, step.status.value) for step in run.steps if step.name == "charge"][:2] == [
        (1, "FAILED"),
        (2, "COMPLETED"),
    ]
    assert shop.blobs.puts > puts


def test_replaying_keeps_nothing_again(kagzi_env: Environment) -> None:
    shop = Shop()
    run = kagzi_env.start(shop.checkout, LARGE)
    kagzi_env.advance("1h")
    before = shop.blobs.puts
    assert before == 3  # the input of the run; of the step, what it was given and what it returned
    kagzi_env.advance("1d")  # it was replayed, and has gone on
    assert shop.blobs.puts == before + 2
    run.signal("more", "!")
    assert run.result() == LARGE.upper() + "!"
    assert shop.blobs.puts == before + 3


def test_a_codec_that_raises_fails_the_step_and_not_the_worker(kagzi_env: Environment) -> None:
    class Moody:
        def encode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
            if b"refused" in data:
                raise ValueError("no")
            return data

        def decode(self, data: bytes, context: kagzi.PayloadContext) -> bytes:
            return data

    app = Kagzi("memory://", codec=Moody())

    @app.step
    async def echo(text: str) -> str:
        return text

    @app.workflow
    async def flow() -> str:
        try:
            await echo("re" + "fused")
        except ValueError as error:
            return f"{error}, and {await echo('fine')}"
        return "?"

    run = kagzi_env.start(flow)
    assert run.result() == "no, and fine"
    assert run.step_names == ["echo", "echo"]
