"""Every statement of this store, read once."""

from __future__ import annotations

from typing import Final

from kagzi.store.sql import load_statements

STATEMENTS: Final = load_statements("kagzi.store.postgres")
