from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kagzi.core.laid_out import beginning, check_json, whole


def _value(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if depth == 0 or kind < 0.4:
        return chance.choice([1, -2.5, 1e300, None, True, 'a"b\\', "x,y:[{", "", "é\u2028"])
    if kind < 0.7:
        return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {f'k"{number}': _value(chance, depth - 1) for number in range(chance.randrange(4))}


def test_lines_and_their_beginning_are_those_of_a_formatter() -> None:
    chance = random.Random(28)
    for _ in range(500):
        data = msgspec.json.encode(_value(chance, 6))
        lines = msgspec.json.format(data, indent=2).decode()
        assert whole(data.decode()) == lines
        assert whole(lines) == lines
        most = chance.randrange(1, 60)
        assert beginning(data, 10_000) == (lines, True)
        assert beginning(data, most)[0] == lines[:most] or len(data) > 8 * most


@pytest.mark.parametrize("levels", [64, 65, 800, 100_000])
def test_what_is_nested_deeply_stands_compactly(levels: int) -> None:
    data = b"[" * levels + b"1,2" + b"]" * levels
    text, _ = beginning(data, 4000)
    assert len(text) <= 4000
    lines = whole(data.decode())
    assert max(len(line) - len(line.lstrip()) for line in lines.splitlines()) <= 128
    assert "".join(lines.split()) == data.decode()


def test_lines_make_no_document_more_than_a_few_times_as_long() -> None:
    data = b"[" * 60 + b",".join([b"1"] * 10_000) + b"]" * 60
    assert len(whole(data.decode())) < 4 * len(data) + 8192


def test_blanks_and_long_texts_are_not_read_to_their_end() -> None:
    assert beginning(b"[" + b" " * 1_000_000 + b"1]", 4000) == ("[", False)
    text, all_of_it = beginning(b'["' + b'\\"' * 1_000_000 + b'"]', 4000)
    assert len(text) == 4000
    assert not all_of_it
    text, _ = beginning(b'"' + "é".encode() * 40_000 + b'"', 101)
    assert text == '"' + "é" * 100


@pytest.mark.parametrize(
    "data", [b"", b"[1,]", b"\xff\xfe", b'"\xff"', b"[01]", b"kagzi", b"[1", b'{"a" 1}', b"\x00" * 99_999]
)
def test_what_is_no_json_is_refused_by_its_beginning(data: bytes) -> None:
    for check in (check_json, lambda data: beginning(data, 4000)):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            check(data)


@pytest.mark.parametrize("token", ["-12.5e-3", "true", "false", "null", '"a\\u00e9"', "[1,2]", '{"k":1}'])
def test_a_beginning_may_end_within_any_token(token: str) -> None:
    data = ("[" + ",".join([token] * 40) + "]").encode()
    for most in range(1, len(data) // 8):
        beginning(data, most)
