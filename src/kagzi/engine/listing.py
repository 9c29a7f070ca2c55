"""Listings: where a page begins, and the tokens of its neighbours.

Stores are asked for one row more than fits, which tells whether there is another page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kagzi.core.limits import check_page_size
from kagzi.core.page import Cursor, Page, PageTokens, check_token

T = TypeVar("T")


class Listing(Generic[T]):
    """Pages of one kind of rows: `key` gives the position of a row, `form` is what every position looks like. `about`
    names the list and its filter, to which the tokens belong."""

    def __init__(self, secret: bytes, key: Callable[[T], str], form: re.Pattern[str]) -> None:
        self._tokens = PageTokens(secret)
        self._key = key
        self._form = form

    def begin(self, size: int, token: str | None, about: str) -> Cursor | None:
        """Returns where a page of this size begins; None: at the beginning."""
        check_page_size(size)
        return self._tokens.read(check_token(token), about, self._form) if token else None

    def page(self, rows: Sequence[T], size: int, about: str, cursor: Cursor | None = None) -> Page[T]:
        """Returns the page of these rows; with the `cursor` that they were read by, if one can go backward, too."""
        more, backward = len(rows) > size, cursor is not None and cursor.backward
        items = tuple(rows[:size][::-1] if backward else rows[:size])
        older, newer = (True, more) if backward else (more, cursor is not None)
        return Page(
            items,
            self._token(items[-1], False, about) if items and older else None,
            self._token(items[0], True, about) if items and newer else None,
        )

    def _token(self, row: T, backward: bool, about: str) -> str:
        return self._tokens.sign(Cursor(self._key(row), backward), about)
