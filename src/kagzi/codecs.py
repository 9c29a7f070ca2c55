"""Layers around stored payloads: compression, encryption, and large ones kept outside of the database.

>>> app = Kagzi(url, codec=Chain(Compress(), Encrypt({"2026": key}, current="2026")))

Each marks what it has made by its first byte, none of which JSON begins with. So `Compress` and `Offload` can be added
to an app that has runs already: what does not have their mark is passed on as it is. `Encrypt` refuses what is not
encrypted unless told otherwise: else plain data could be put in the place of encrypted in the database.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from kagzi.blobs import BlobStore, DirectoryBlobs, S3Blobs
from kagzi.core.limits import PAYLOAD_BYTES
from kagzi.core.lineage import PayloadContext, PayloadKind
from kagzi.errors import CannotDecode, InvalidRequest, MissingDependency
from kagzi.ids import entropy
from kagzi.sdk.payload import Codec, check_codec

__all__ = ["BlobStore", "Chain", "Compress", "DirectoryBlobs", "Encrypt", "Offload", "S3Blobs"]

_AS_IS: Final = b"\x00"  # what follows is passed on: it begins with a byte that would say otherwise
_ZLIB: Final = b"\x01"
_ZSTD: Final = b"\x02"
_ENCRYPTED: Final = b"\x03"
_ELSEWHERE: Final = b"\x04"
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_KEY_BYTES: Final = (16, 24, 32)
# Part of what is stored: a number stays what it is.
_KINDS: Final = {kind: number for number, kind in enumerate(PayloadKind, start=1)}
_LARGEST: Final = 8 * PAYLOAD_BYTES  # that is made of compressed data, whatever that says
_PIECE: Final = 256  # bytes of zstd that are looked at in one go: 128 KiB may be made of a few of them


class Chain:
    """Several codecs as one: encodes with the first first, and decodes with the last first."""

    def __init__(self, *codecs: Codec) -> None:
        for codec in codecs:
            check_codec(codec, "each part of a Chain must be a codec")
        self._codecs = codecs

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        for codec in self._codecs:
            data = codec.encode(data, context)
        return data

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        for codec in reversed(self._codecs):
            data = codec.decode(data, context)
        return data


class Compress:
    """Compresses payloads from `above` bytes up: with zstd if Python 3.14 or the package zstandard is there, else zlib.

    Both are read wherever they are known; `method="zlib"` writes what every process can read. Goes before `Encrypt` in
    a chain: what is encrypted cannot be compressed.
    """

    def __init__(self, *, above: int = 200, method: str | None = None) -> None:
        if method not in (None, "zlib", "zstd"):
            raise InvalidRequest(f'method must be "zlib" or "zstd", not {method!r:.100}')
        _check_size(above, "above")
        zstd = _zstd()
        if method == "zstd" and zstd is None:
            raise _no_zstd()
        self._above = above
        self._zstd = None if method == "zlib" else zstd

    def encode(self, data: bytes, context: PayloadContext) -> bytes:  # noqa: ARG002
        if self._above <= len(data) <= _LARGEST:  # what is larger would not be read
            packed = _ZLIB + zlib.compress(data) if self._zstd is None else _ZSTD + self._zstd[0](data)
            if len(packed) < len(data):
                return packed
        return _AS_IS + data if data[:1] in (_AS_IS, _ZLIB, _ZSTD) else data

    def decode(self, data: bytes, context: PayloadContext) -> bytes:  # noqa: ARG002
        mark = data[:1]
        if mark == _AS_IS:
            return data[1:]
        if mark == _ZLIB:
            reader = zlib.decompressobj()
            try:
                plain = reader.decompress(data[1:], _LARGEST)
            except zlib.error as error:
                raise CannotDecode(f"a compressed payload is damaged: {error}") from None
            if not reader.eof:
                raise CannotDecode("a compressed payload is cut off, or larger than any that is written")
            return plain
        if mark == _ZSTD:
            if (zstd := _zstd()) is None:
                raise _no_zstd()
            try:
                return zstd[1](data[1:])
            except Exception as error:
                raise CannotDecode(f"a compressed payload is damaged: {error}") from None
        return data


class Encrypt:
    """Encrypts payloads with AES-GCM, each for its place: one that was moved to another run, field or namespace is
    refused. Needs `kagzi[crypto]`.

    `keys` are those that can be read with, by an id of your own, 16, 24 or 32 bytes each; `current` is the id of the
    one to write with. To change keys, first give all processes the new one in `keys`, then make it `current`, and drop
    the old one when no run needs it any more. `plain=True` also reads payloads from before encryption; leave it out
    as soon as they are gone.
    """

    def __init__(self, keys: Mapping[str, bytes], *, current: str, plain: bool = False) -> None:
        try:
            aead: Any = import_module("cryptography.hazmat.primitives.ciphers.aead")
            self._invalid: type[Exception] = import_module("cryptography.exceptions").InvalidTag
        except ModuleNotFoundError as error:
            raise MissingDependency('Encryption is not installed. Run: pip install "kagzi[crypto]"') from error
        self._ciphers: dict[bytes, Any] = {}
        given: Any = keys
        if not isinstance(given, Mapping):
            raise InvalidRequest('keys must be a dict of keys by their ids, such as {"2026": key}')  # and never shown
        for name, key in given.items():
            if not isinstance(name, str):
                raise InvalidRequest(f"the id of a key must be text, not {type(name).__name__}")
            if not isinstance(key, bytes) or len(key) not in _KEY_BYTES:
                raise InvalidRequest(f"key {name!r:.100} must be 16, 24 or 32 bytes")  # and never shown
            if not 1 <= len(name.encode()) <= 255:
                raise InvalidRequest("the id of a key must have 1 to 255 bytes")
            self._ciphers[name.encode()] = aead.AESGCM(key)
        if current not in keys:
            raise InvalidRequest(f"current is {current!r:.100}, which is not one of keys")
        self._current = current.encode()
        self._plain = plain

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        run = context.run_id.encode()
        key_id, kind = self._current, _KINDS[context.kind]
        head = b"%b%c%b%c%b%b" % (_ENCRYPTED, len(key_id), key_id, kind, _length(run), run)
        nonce = entropy(_NONCE_BYTES)
        # What is proved: that this is such a payload of this run, written with this key.
        return head + nonce + bytes(self._ciphers[key_id].encrypt(nonce, data, head + _place(context)))

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        if data[:1] != _ENCRYPTED:
            if self._plain:
                return data
            raise CannotDecode(
                f"{context} is not encrypted, although this app encrypts; plain=True reads what was stored before"
            )
        try:
            key_id, kind, run, at = _read_head(data)
        except IndexError:
            raise CannotDecode("an encrypted payload is cut off") from None
        nonce, rest = data[at : at + _NONCE_BYTES], data[at + _NONCE_BYTES :]
        if len(rest) < _TAG_BYTES:
            raise CannotDecode("an encrypted payload is cut off")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise CannotDecode(
                f"a payload is encrypted with the key {key_id.decode(errors='replace')!r}, which this app has not; "
                "give it in keys="
            )
        if kind != _KINDS[context.kind] or not context.accepts(run):
            was = next((each.value for each, number in _KINDS.items() if number == kind), "payload")
            raise CannotDecode(
                f"a payload that was encrypted as the {was} of {run} stands in the place of {context}: somebody has "
                "moved it in the database"
            )
        try:
            return bytes(cipher.decrypt(nonce, rest, data[:at] + _place(context)))
        except self._invalid:
            raise CannotDecode(
                f"{context} was changed or put there from another place, or the key "
                f"{key_id.decode(errors='replace')!r} is not the one that it was encrypted with"
            ) from None


def _length(run: bytes) -> bytes:
    return len(run).to_bytes(2, "big")


def _read_head(data: bytes) -> tuple[bytes, int, str, int]:
    """Returns the id of the key, the kind, the run, and where the rest begins. IndexError if it is cut off."""
    at = 2 + data[1]
    kind, size = data[at], data[at + 1] << 8 | data[at + 2]
    end = at + 3 + size
    return data[2:at], kind, data[at + 3 : end].decode(errors="replace"), end


def _place(context: PayloadContext) -> bytes:
    namespace, name = context.namespace.encode(), context.name.encode()
    return b"%b%b%b" % (_length(namespace), namespace, name)


class Offload:
    """Keeps payloads above so many bytes in a `BlobStore`, and a reference in the database. Goes last in a chain.

    Reading and writing them blocks the event loop, so the store should be near.
    """

    def __init__(self, blobs: BlobStore, *, above: int = 256 * 1024) -> None:
        if isinstance(blobs, type) or not all(callable(getattr(blobs, name, None)) for name in ("put", "get")):
            raise InvalidRequest(
                f"blobs must be a store with put and get, such as DirectoryBlobs(path) or S3Blobs(bucket), not "
                f"{blobs!r:.100}"
            )
        _check_size(above, "above")
        self._blobs = blobs
        self._above = above

    def encode(self, data: bytes, context: PayloadContext) -> bytes:  # noqa: ARG002
        if len(data) <= self._above:
            return _AS_IS + data if data[:1] in (_AS_IS, _ELSEWHERE) else data
        key = hashlib.sha256(data).hexdigest()
        self._blobs.put(key, data)
        return _ELSEWHERE + key.encode()

    def decode(self, data: bytes, context: PayloadContext) -> bytes:  # noqa: ARG002
        mark = data[:1]
        if mark == _AS_IS:
            return data[1:]
        if mark != _ELSEWHERE:
            return data
        key = data[1:].decode(errors="replace")
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            raise CannotDecode("the reference to a large payload is damaged")
        try:
            found = self._blobs.get(key)
        except KeyError:
            raise CannotDecode(f"the large payload {key} is not in the store of this app") from None
        if hashlib.sha256(found).hexdigest() != key:
            raise CannotDecode(f"the large payload {key} was changed in its store")
        return found


def _check_size(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"{name} must be a number of bytes, 0 or more, not {value!r:.100}")


def _zstd() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]] | None:
    """What compresses and what decompresses, if this process has it."""
    try:
        ours: Any = import_module("compression.zstd")
    except ModuleNotFoundError:
        try:
            theirs: Any = import_module("zstandard")
        except ModuleNotFoundError:
            return None

        def read(data: bytes) -> bytes:
            # Not `decompress`, which believes what the head of the data says about its size.
            reader = theirs.ZstdDecompressor().decompressobj()
            size, parts = 0, []
            for at in range(0, len(data), _PIECE):
                parts.append(reader.decompress(data[at : at + _PIECE]))
                size += len(parts[-1])
                if size > _LARGEST:
                    break
            if not reader.eof or size > _LARGEST:
                raise ValueError("it is cut off, or larger than any that is written")
            return b"".join(parts)

        return theirs.compress, read

    def decompress(data: bytes) -> bytes:
        reader = ours.ZstdDecompressor()
        plain = bytes(reader.decompress(data, _LARGEST))
        if not reader.eof:
            raise ValueError("it is cut off, or larger than any that is written")
        return plain

    return ours.compress, decompress


def _no_zstd() -> MissingDependency:
    return MissingDependency("zstd is not installed. Use Python 3.14, or run: pip install zstandard")
