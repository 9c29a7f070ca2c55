"""Finds keys that a JSON object has twice. Programs differ in which of the two they take, so a proxy might check one
value while we act on the other."""

from __future__ import annotations

import json
from typing import Any


class _Repeated(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def repeated_key(document: bytes) -> str | None:
    """Returns a key that some object of the document has twice, however it is written; None if there is none. The
    document must be JSON in UTF-8. Raises RecursionError if it is nested too deeply."""
    try:
        _DECODER.decode(document.decode())
    except _Repeated as found:
        return found.key
    return None


def _look(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1:
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise _Repeated(key)
            seen.add(key)


# Numbers are not looked at: Python refuses the longest of them.
_DECODER = json.JSONDecoder(object_pairs_hook=_look, parse_int=len, parse_float=len, parse_constant=len, strict=False)
