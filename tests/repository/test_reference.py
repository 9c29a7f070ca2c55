"""The pages made from code are those the code makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kagzi.cli.reference import PAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    made = PAGES[name]()
    assert (DOCS / name).read_text(encoding="utf-8") == made, "run: python -m kagzi.cli.reference"
