"""Steps that compute, in processes. See `__main__.py`."""
