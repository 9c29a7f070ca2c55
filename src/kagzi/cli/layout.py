"""How a table fits into a terminal: ids are short; if that is not enough, columns that say nothing go, then lines wrap
between words, then words end in …; a sentence outside of a table wraps between words. A program that reads the output
gets every cell whole.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from kagzi.errors import InvalidRequest

GAP: Final = 2  # between columns
_LEAST: Final = 8  # characters that a cell keeps when it has to end in …
_WORD: Final = 20  # a word that is longer may end in … before a column goes
_TIMED: Final = 13  # of an id that begins with the time: to the millisecond
_RANDOM: Final = 8  # of one that is all chance
_WHOLE: Final = 36  # of a UUID
_NAME: Final = 24  # of a longer name in the first column, before sentences beside it become a word a line
_EMPTY: Final = frozenset({"", "-"})


class Id(str):
    """An id of Kagzi's own, of which a terminal shows as much as tells it from the others in its column."""

    __slots__ = ()


def shortened(column: Sequence[str]) -> list[str]:
    """Returns the cells of a column, ids among them as short as they can be told apart."""
    ids = {cell for cell in column if isinstance(cell, Id)}
    if not ids:
        return list(column)
    longest = max(map(len, ids))
    length = _TIMED if all(cell[14:15] == "7" for cell in ids) else _RANDOM
    while length < longest and len({cell[:length] for cell in ids}) < len(ids):
        length += 1
    return [cell[:length].rstrip("-") if isinstance(cell, Id) else cell for cell in column]


def is_short(text: str) -> bool:
    """Says whether this can be but the beginning of an id."""
    return len(text) < _WHOLE


def found_by(text: str, ids: Iterable[str], what: str) -> str | None:
    """Returns the one of these ids that begins like this, as a terminal has shown it."""
    found = [each for each in ids if each.startswith(text.lower())]
    if len(found) > 1:
        raise InvalidRequest(f"several {what} begin with {text}: {', '.join(found[:3])}; say more of it")
    return found[0] if found else None


def kept(headings: Sequence[str], columns: Sequence[Sequence[str]], room: int, spare: Sequence[str]) -> list[int]:
    """Returns the numbers of the columns to show. Where there is no room for all words, those without a word in them
    go, then one after the other the spare ones, by their headings."""
    shown = list(range(len(columns)))
    empty = [headings[n] for n in shown[1:] if _EMPTY.issuperset(columns[n])]
    for heading in (*empty, *spare):
        least = (min(_WORD, _word(headings[n], columns[n])) for n in shown)
        if sum(least) + GAP * (len(shown) - 1) <= room:
            break
        shown = [n for n in shown if headings[n] != heading]
    return shown


def widths(headings: Sequence[str], columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Returns how many characters each column gets."""
    natural = [_natural(heading, column) for heading, column in zip(headings, columns, strict=True)]
    words = [_word(heading, column) for heading, column in zip(headings, columns, strict=True)]
    room -= GAP * (len(columns) - 1)
    clipped = [min(word, _LEAST) for word in words]
    first = natural[0] if natural[0] <= _WHOLE else _NAME
    readable = [first, *(max(word, min(_WORD, all_)) for word, all_ in zip(words[1:], natural[1:], strict=True))]
    # Short of names nobody types, the first column is what people copy: the last to be cut.
    for least in (readable, words, [natural[0], *clipped[1:]], clipped):
        while sum(natural) > room and any(have > need for have, need in zip(natural, least, strict=True)):
            widest = max(range(len(natural)), key=lambda n: (natural[n] > least[n], natural[n]))
            natural[widest] -= 1
    return natural


def cut(cell: str, width: int) -> str:
    """Returns the cell with words that are longer than the column ending in …"""
    return " ".join(word if len(word) <= width else f"{word[: width - 1]}…" for word in cell.split(" "))


def wrapped(text: str, room: int) -> str:
    """Returns a line of prose in lines that break between words."""
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    return "\n".join(lines)


def _natural(heading: str, column: Sequence[str]) -> int:
    return max(map(len, (heading, *column)))


def _word(heading: str, column: Sequence[str]) -> int:
    """Returns the length of the longest word."""
    return max(len(word) for cell in (heading, *column) for word in cell.split(" "))
