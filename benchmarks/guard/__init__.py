"""Counts what W1, W2 and the hot statements cost in instructions, and holds them against `bounds.json`."""
