"""Lays JSON out in lines for people, a piece at a time.

Indentation multiplies what it is given: a list 800 levels deep becomes a thousand times as long. So lines are made only
down to `DEPTH` levels, what is nested deeper stands compactly, and who shows a part makes only that part.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Final

import msgspec

DEPTH: Final = 64  # levels that get lines of their own
_SPACES: Final = 2  # a level
_SMALL: Final = 8 * 1024
_READ: Final = 8  # bytes that are read for a character that is shown
_MINIMUM: Final = 4096  # blanks that are always there
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}:,]|[^\s"\[\]{}:,]+', re.DOTALL)
_TRUNCATED: Final = "Input data was truncated"  # how msgspec says that what it has read was JSON so far
_OF_WORDS: Final = b"+-.0123456789eEtrufalsn"
_OPENING: Final = frozenset("[{")
_CLOSING: Final = frozenset("]}")


def check_json(data: bytes) -> None:
    """Raises DecodeError or UnicodeDecodeError for what is not JSON, and RecursionError for what nothing could read. Of
    what is large it makes no objects, which costs a tenth of decoding; numbers that are out of range are not found
    there."""
    if len(data) <= _SMALL:
        msgspec.json.decode(data)
    else:
        msgspec.json.decode(data, type=msgspec.Raw)
    data.decode()


def laid_out(text: str, blanks: int) -> Iterator[str]:
    """Yields JSON in lines, piece by piece. Once so many blanks have been spent on lines, the rest is compact."""
    depth, before = 0, ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        opened, closes = before in _OPENING, token in _CLOSING
        in_lines = depth <= DEPTH and blanks > 0
        if in_lines and (before == "," or opened is not closes):  # an empty pair stays together
            indent = _SPACES * (depth - closes)
            blanks -= 1 + indent
            yield "\n" + " " * indent
        elif in_lines and before == ":":
            yield " "
        yield token
        depth += (token in _OPENING) - closes
        before = token


def beginning(data: bytes, most: int) -> tuple[str, bool]:
    """Returns JSON in lines as far as so many characters go, and whether that is all of it. No more than the beginning
    is read, however long it is, be it a single text or blanks. Raises DecodeError or UnicodeDecodeError if that is not
    how JSON begins."""
    read = data[: _READ * most]
    text, _ = codecs.utf_8_decode(read, "strict", len(read) == len(data))
    _check_beginning(read, cut=len(read) < len(data))
    room, pieces = most, []
    for piece in laid_out(text, most):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            break
    return "".join(pieces)[:most], room >= 0 and len(read) == len(data)


def _check_beginning(read: bytes, *, cut: bool) -> None:
    try:
        # The beginning of a number or of a word is none.
        msgspec.json.decode(read.rstrip(_OF_WORDS) if cut else read, type=msgspec.Raw)
    except RecursionError:
        pass  # deep, and JSON so far
    except msgspec.DecodeError as error:
        if not cut or str(error) != _TRUNCATED:
            raise


def whole(text: str) -> str:
    """Returns all of JSON in lines, which make it no more than four times as long."""
    return "".join(laid_out(text, _MINIMUM + 3 * len(text)))
