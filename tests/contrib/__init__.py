"""Adapters, each with the library it is for."""
