"""Driving one run: a deterministic event loop and the rules of replay. Pure: the world is seen through `Effects`."""
