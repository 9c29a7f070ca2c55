"""Adapters for libraries of others, each with the name of its library and imported by those who use it."""
