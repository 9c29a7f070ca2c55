"""Values that are no result of a function: how they become bytes and come back, by the rules for results of steps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kagzi.core.limits import check_name
from kagzi.core.signal import MADE_KEY
from kagzi.errors import InvalidRequest
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


def encode_signal(name: str, value: Any, codec: Codec | None) -> bytes:
    """Returns the value of a signal as it is sent; NotSerializable if JSON cannot hold it."""
    return value_codec(Any, f"signal {name!r}", codec).encode_result(value)


def check_key(key: str | None, made: str) -> str:
    """Returns the key of a signal: the sender's, or one that no other signal has."""
    if key is None:
        return MADE_KEY + made
    if check_name(key, "signal key").startswith(MADE_KEY):
        raise InvalidRequest(f"a signal key must not begin with {MADE_KEY!r}: such keys are made by Kagzi")
    return key
