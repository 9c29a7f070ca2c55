"""Values that reach an engine from outside: what is refused before it reaches a store."""

from __future__ import annotations

import pytest

from kagzi.api.operations import Chunk, SetValue
from kagzi.engine.checks import check_chunk, check_value_names
from kagzi.errors import InvalidRequest, PayloadTooLarge

RUN = "01900000-0000-7000-8000-000000000000"


def chunk(name: str, value: bytes = b"1", number: int = 0) -> Chunk:
    return Chunk(
        namespace="default", run_id=RUN, token=RUN, operations=(SetValue(name=name, value=value, number=number),)
    )


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (chunk(""), InvalidRequest, "value name must not be empty"),
        (chunk("x" * 256), InvalidRequest, "at most 255"),
        (chunk("a\0"), InvalidRequest, "NUL"),
        (chunk("@failed_input"), InvalidRequest, "must not begin with '@'"),
        (chunk("stage", b"x" * (64 * 1024 + 1)), PayloadTooLarge, "at most 65,536"),
        (chunk("@progress", b"x" * (64 * 1024 + 1)), PayloadTooLarge, "at most 65,536"),
        (chunk("stage", number=-1), InvalidRequest, "number of value stage"),
        (chunk("stage", "text"), InvalidRequest, "must be bytes"),  # type: ignore[arg-type]
    ],
)
def test_bad_values_are_refused(bad: Chunk, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_chunk(bad, 1 << 20)


def test_good_values_count_with_their_size() -> None:
    assert check_chunk(chunk("stage", b"x" * 64 * 1024), 1 << 20) == 64 * 1024
    assert check_chunk(chunk("@progress", b"12"), 1 << 20) == 2


def test_nobody_asks_for_more_names_than_there_can_be() -> None:
    check_value_names(["a"] * 100)
    with pytest.raises(InvalidRequest, match="at most 100 values"):
        check_value_names(["a"] * 101)
    with pytest.raises(InvalidRequest, match="value name"):
        check_value_names([""])
