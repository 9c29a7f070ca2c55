"""Databases, behind one protocol."""
