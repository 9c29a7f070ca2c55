from __future__ import annotations

import pytest

from kagzi.core.limits import STEP_ID_BYTES, check_step_id
from kagzi.errors import InvalidRequest


@pytest.mark.parametrize("letter", ["a", "é", "€", "😀"])
def test_step_ids_are_bounded_in_bytes(letter: str) -> None:
    size = len(letter.encode())
    for spare in range(size):
        fits = letter * (STEP_ID_BYTES // size - 1) + "a" * (spare + STEP_ID_BYTES % size + 1)
        assert len(check_step_id(fits).encode()) <= STEP_ID_BYTES
    exact = letter * (STEP_ID_BYTES // size) + "a" * (STEP_ID_BYTES % size)
    assert check_step_id(exact) == exact
    with pytest.raises(InvalidRequest, match=rf"1,601 bytes; at most {STEP_ID_BYTES:,} are allowed.*shorten"):
        check_step_id(exact + "a")


@pytest.mark.parametrize(("step_id", "words"), [("", "empty"), ("a\0", "NUL"), ("\ud800", "surrogate")])
def test_step_ids_that_no_database_stores(step_id: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        check_step_id(step_id)
