"""`kagzi.codecs`: what comes back, what is refused, and what the database gets to see."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import kagzi
from kagzi import CannotDecode, Codec, Conflict, Kagzi, codecs
from kagzi.codecs import Chain, Compress, DirectoryBlobs, Encrypt, Offload
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.errors import InvalidRequest
from tests.sdk.values import CONTEXT

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
VALUES = [b"null", b"", b'"a"', b"[" + b"1," * 5000 + b"1]", *[bytes([mark]) + b"x" * 300 for mark in range(6)]]


@pytest.mark.parametrize("value", VALUES, ids=[f"{value[:3]!r}-{len(value)}" for value in VALUES])
def test_everything_comes_back(value: bytes, tmp_path: Path) -> None:
    encrypt = Encrypt({"new": NEW}, current="new")
    offload = Offload(DirectoryBlobs(tmp_path), above=100)
    codecs: list[Codec] = [Compress(), Compress(method="zlib", above=0), encrypt, offload]
    for codec in (*codecs, Chain(Compress(), encrypt, offload), Chain(Compress(above=0), Compress(above=0))):
        assert codec.decode(codec.encode(value, CONTEXT), CONTEXT) == value


def test_what_is_added_later_reads_what_was_there(tmp_path: Path) -> None:
    plain = b'["hello"]'
    assert Compress().decode(plain, CONTEXT) == plain
    assert Offload(DirectoryBlobs(tmp_path)).decode(plain, CONTEXT) == plain
    assert Encrypt({"new": NEW}, current="new", plain=True).decode(plain, CONTEXT) == plain
    with pytest.raises(CannotDecode, match="not encrypted"):
        Encrypt({"new": NEW}, current="new").decode(plain, CONTEXT)


def test_keys_are_changed_by_their_ids() -> None:
    before = Encrypt({"old": OLD}, current="old").encode(b"secret", CONTEXT)
    both = Encrypt({"old": OLD, "new": NEW}, current="new")
    assert both.decode(before, CONTEXT) == b"secret"
    after = both.encode(b"secret", CONTEXT)
    assert (b"secret" in after, after == both.encode(b"secret", CONTEXT)) == (False, False)
    assert Encrypt({"new": NEW}, current="new").decode(after, CONTEXT) == b"secret"
    with pytest.raises(CannotDecode, match="key 'old', which this app has not"):
        Encrypt({"new": NEW}, current="new").decode(before, CONTEXT)
    with pytest.raises(CannotDecode, match=r"changed .* or the key 'old' is not the one"):
        Encrypt({"old": NEW}, current="old").decode(before, CONTEXT)


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    encrypt = Encrypt({"a": OLD, "b": OLD}, current="a")
    data = encrypt.encode(b"secret", CONTEXT)
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 3]) + data[place + 1 :]
        with pytest.raises(CannotDecode):
            encrypt.decode(changed, CONTEXT)
    for length in range(len(data)):
        with pytest.raises(CannotDecode):
            encrypt.decode(data[:length], CONTEXT)
    offload = Offload(DirectoryBlobs(tmp_path), above=10)
    reference = offload.encode(b"x" * 100, CONTEXT)
    assert offload.encode(b"x" * 100, CONTEXT) == reference
    (file,) = [file for file in tmp_path.rglob("*") if file.is_file()]
    file.write_bytes(b"y" * 100)
    with pytest.raises(CannotDecode, match="changed in its store"):
        offload.decode(reference, CONTEXT)
    file.unlink()
    with pytest.raises(CannotDecode, match="not in the store"):
        offload.decode(reference, CONTEXT)
    with pytest.raises(CannotDecode, match="damaged"):
        offload.decode(b"\x04../../etc/passwd", CONTEXT)
    packed = Compress(method="zlib").encode(b"x" * 1000, CONTEXT)
    for bad in (packed[:-3], packed[:5] + b"zzz" + packed[8:]):
        with pytest.raises(CannotDecode):
            Compress().decode(bad, CONTEXT)


def test_mistakes_do_not_show_keys() -> None:
    with pytest.raises(InvalidRequest, match="16, 24 or 32 bytes") as short:
        Encrypt({"a": b"hunter2"}, current="a")
    assert "hunter2" not in str(short.value)
    with pytest.raises(InvalidRequest, match="not one of keys"):
        Encrypt({"a": OLD}, current="b")
    with pytest.raises(InvalidRequest, match="zlib"):
        Compress(method="lzma")


async def test_the_database_sees_no_payload_and_a_wrong_key_is_told(tmp_path: Path) -> None:
    path = tmp_path / "kagzi.db"

    def shop(codec: Codec | None) -> tuple[Kagzi, kagzi.Workflow[[str], str]]:
        app = Kagzi(f"sqlite:///{path}", codec=codec)

        @app.step
        async def shout(text: str) -> str:
            return text.upper()

        @app.workflow
        async def speech(text: str) -> str:
            kagzi.set_value("stage", "secret stage")
            told = await kagzi.wait_signal("go", str)
            return await shout(text) + told

        return app, speech

    blobs = DirectoryBlobs(tmp_path / "blobs")
    codec = Chain(Compress(), Encrypt({"a": OLD}, current="a"), Offload(blobs, above=1000))
    app, speech = shop(codec)
    async with app, app.worker():
        run = await speech.options(id="one").start("secret input")
        await run.signal("go", "secret signal")
        assert await run.result(timeout=30) == "SECRET INPUTsecret signal"
        assert await run.value("stage") == "secret stage"
        assert (await speech.options(id="one").start("secret input")).already_exists
    with sqlite3.connect(path) as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    for secret in (b"secret input", b"SECRET INPUT", b"secret stage", b"secret signal"):
        assert secret.hex() not in dump.lower()
        assert secret.decode() not in dump
    stranger, same = shop(Encrypt({"a": NEW}, current="a"))
    async with stranger:
        with pytest.raises(CannotDecode, match="the key 'a' is not the one"):
            await (await stranger.find("one", same)).result(timeout=30)
        with pytest.raises(Conflict, match=r"told: the input of .* was changed .* the key 'a' is not the one"):
            await same.options(id="one").start("secret input")
    bare, same = shop(None)
    async with bare:
        with pytest.raises(InvalidRequest, match="encoded by a codec that this app has not; give it that of the app"):
            await (await bare.find("one", same)).result(timeout=30)
        with pytest.raises(InvalidRequest, match="encoded by a codec that this app has not"):
            same.signature.decode_arguments(codec.encode(b'["secret input"]', CONTEXT))


@pytest.mark.parametrize("method", ["zlib", "zstd"])
def test_little_data_does_not_become_too_much(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "zstd" and codecs._zstd() is None:
        pytest.skip("there is no zstd here")
    compress = Compress(method=method)
    assert codecs._LARGEST <= 8 * PAYLOAD_BYTES
    bomb = compress.encode(b"x" * 5_000_000, CONTEXT)
    assert len(bomb) < 10_000
    monkeypatch.setattr(codecs, "_LARGEST", 1_000_000)
    with pytest.raises(CannotDecode, match="larger than any that is written"):
        compress.decode(bomb, CONTEXT)
    large = b"x" * 1_000_001
    assert compress.decode(compress.encode(large, CONTEXT), CONTEXT) == large  # as it is
    at_most = b"x" * 1_000_000
    packed = compress.encode(at_most, CONTEXT)
    assert len(packed) < 10_000
    assert compress.decode(packed, CONTEXT) == at_most
    for cut in (1, 2, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CannotDecode):
            compress.decode(packed[:cut], CONTEXT)
