from __future__ import annotations

import pytest

from kagzi.core.repeated_keys import repeated_key


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ('{"a": 1, "a": 1}', "a"),
        ('{"a": {"b": 1, "c": [], "b": 2}}', "b"),
        ('[[{"a": 1}, {"é": 1, "\\u00e9": 2}]]', "é"),
        ('{"a": 1, "\\u0061": 2}', "a"),
        ('{"": 1, "": 2}', ""),
        ('{"a": [{"x": 1}], "b": {"x": {"x": 1}}}', None),
        ('{"a": 1, "A": 2}', None),
        ('"a"', None),
        (f'[{"9" * 10_000}, -1.5e999, "{{\\"a\\":1,\\"a\\":1}}"]', None),
    ],
)
def test_a_key_that_an_object_has_twice_is_found_however_it_is_written(document: str, key: str | None) -> None:
    assert repeated_key(document.encode()) == key
