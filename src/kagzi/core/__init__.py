"""Nouns and rules. No I/O, no asyncio, no clock; imports nothing but errors and msgspec."""
