"""What others wrote cannot act on the terminal of those who read it."""

from __future__ import annotations

import json
import unicodedata

import pytest

from kagzi.core.printable import printable, printable_json

HOSTILE = "\x1b[2J\x9b31m\x9d0;pwned\x07 \u202egnp.exe\u2066x\u2069 \x85\x08\x7f\r\u2028 end"
BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"


def harmful() -> list[str]:
    characters = [chr(number) for number in range(0x110000)]
    return [
        character
        for character in characters
        if (unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n")
        or unicodedata.bidirectional(character) in BIDI
        or character in MARKS
    ]


def test_every_control_and_bidi_character_is_written_out() -> None:
    found = harmful()
    assert len(found) > 2048 + 60
    assert printable("".join(found)).isprintable()
    assert printable("\x1b\u202e\ud800") == "\\x1b\\u202e\\ud800"


@pytest.mark.parametrize("text", ["plain", "größer — 日本語 😀 👩‍👩‍👧 שלום", "a\tb\nc", "\\x1b"])
def test_other_text_stays(text: str) -> None:
    assert printable(text) == text
    assert printable_json(text) == text


def test_json_means_the_same_afterwards() -> None:
    document = {HOSTILE: [HOSTILE, 1.5, None], "half": "\ud800"}
    shown = printable_json(json.dumps(document, ensure_ascii=False, indent=2))
    assert json.loads(shown) == document
    assert all(line.isprintable() for line in shown.split("\n"))
