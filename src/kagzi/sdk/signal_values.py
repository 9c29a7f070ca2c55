"""Values that are no result of a function: how they become bytes and come back, by the rules for results of steps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kagzi.core.lineage import PayloadContext
from kagzi.sdk.payload import Codec
from kagzi.sdk.signature import Signature


def value_codec(annotation: Any, name: str, codec: Codec | None) -> Signature:
    """Returns how a value of this type becomes bytes and comes back, by the rules for results of steps."""
    try:
        plain = _codec_of(annotation, name)
    except TypeError:  # a type that cannot be hashed
        plain = _codec_of.__wrapped__(annotation, name)
    return plain if codec is None else plain.with_codec(codec)


@lru_cache(maxsize=1024)
def _codec_of(annotation: Any, name: str) -> Signature:
    def value() -> Any: ...

    value.__annotations__ = {"return": annotation}
    signature = Signature(value, name=name)
    signature.result_words = name
    signature.resolve()
    return signature


def encode_signal(name: str, value: Any, codec: Codec | None, context: PayloadContext | None) -> bytes:
    """Returns the value of a signal as it is sent; NotSerializable if JSON cannot hold it."""
    return value_codec(Any, f"signal {name!r}", codec).encode_result(value, context)
