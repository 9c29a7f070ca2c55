"""Polls: how workers ask for runs, wait for them, and are answered."""
