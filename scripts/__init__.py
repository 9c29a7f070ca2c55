"""Trials against real surroundings, too long or too demanding for the ordinary suite. Each is a command of its own."""
