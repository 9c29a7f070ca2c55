from __future__ import annotations

import string

import pytest

from kagzi.core.page import BY_ID, Cursor, PageTokens
from kagzi.errors import InvalidRequest

TOKENS = PageTokens(b"secret")
LETTERS = string.ascii_letters + string.digits + "-_"


def read(token: str, about: str = "runs") -> Cursor:
    return TOKENS.read(token, about, BY_ID)


@pytest.mark.parametrize("digit", "0123456789abcdef")
@pytest.mark.parametrize("backward", [False, True])
def test_a_token_is_taken_as_it_was_given_and_in_no_other_form(digit: str, backward: bool) -> None:
    """Base64 has bits at its end that say nothing, and its decoder skips what it does not know."""
    cursor = Cursor(f"01890000-0000-7000-8000-00000000000{digit}", backward=backward)
    token = TOKENS.sign(cursor, "runs")
    assert read(token) == cursor
    others = [token[:-1] + letter for letter in LETTERS if letter != token[-1]]
    others += [f"{token}=", f"{token} ", f"{token}!", f"!{token}", f"{token[:9]}\n{token[9:]}", token[1:], ""]
    for other in others:
        with pytest.raises(InvalidRequest, match="page token"):
            read(other)
    with pytest.raises(InvalidRequest, match="does not belong to this listing"):
        read(token, "workers")
