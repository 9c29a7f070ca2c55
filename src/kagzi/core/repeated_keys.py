"""Finds keys that a JSON object has twice. Programs differ in which of the two they take, so a proxy might check one
value while we act on the other."""

from __future__ import annotations

import re
from typing import Final

import msgspec

_NEXT: Final = re.compile(r'[{}"]')
# Behind its first quote: a text, and whether it is a key.
_TEXT: Final = re.compile(r'([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?', re.DOTALL)


def repeated_key(document: bytes) -> str | None:
    """Returns a key that some object of the document has twice, however it is written; None if there is none. The
    document must be JSON in UTF-8. Of a large one this takes long, and lets other threads run meanwhile."""
    text = document.decode()
    objects: list[set[str]] = []
    begin = 0
    while (found := _NEXT.search(text, begin)) is not None:
        begin = found.end()
        match found[0]:
            case "{":
                objects.append(set())
            case "}":
                objects.pop()
            case _:
                written = _TEXT.match(text, begin)
                assert written is not None
                begin = written.end()
                if written[2] is None:
                    continue
                key = written[1]
                if "\\" in key:
                    key = msgspec.json.decode(f'"{key}"', type=str)
                if key in objects[-1]:
                    return key
                objects[-1].add(key)
    return None
