from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from kagzi.store.sqlite.statements import widened


@pytest.fixture
def tidy() -> Iterator[None]:
    """What a broken world leaves behind does not trouble other tests."""
    widened.cache_clear()
    previous, sys.unraisablehook = sys.unraisablehook, lambda _: None
    yield
    gc.collect()
    sys.unraisablehook = previous
    widened.cache_clear()
