"""Scopes: where in a workflow a step was called, in a way that stays the same on every replay.

A scope belongs to a task of the workflow. It is named by the task's name, else by its coroutine's name, with an
occurrence number within the parent scope; the path of names from the root is part of each step's identity. So two
branches of a `gather` that both call `charge` do not compete for numbers, whichever of them runs first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kagzi.core.limits import STEP_ID_BYTES, check_step_id
from kagzi.core.step import escape, numbered

_SURELY_SHORT: Final = STEP_ID_BYTES // 4  # characters, of which none takes more than four bytes


class Scope:
    __slots__ = ("_counts", "_label", "_occurrence", "parent", "prefix")

    def __init__(self, parent: Scope | None, label: str) -> None:
        self.parent = parent
        self._counts: dict[str, int] | None = None
        if parent is None:
            self._label, self._occurrence, self.prefix = "", 1, ""
        else:
            self._name(parent, label)

    def path(self) -> Iterator[Scope]:
        """Yields this scope and those above it, up to the root."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def child(self, label: str) -> Scope:
        return Scope(self, label)

    def identity(self, name: str) -> str:
        """Takes the id of the next step or timer with this (escaped) name."""
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        occurrence = counts[name] = counts.get(name, 0) + 1
        step_id = self.prefix + name if occurrence == 1 else f"{self.prefix}{name}#{occurrence}"
        if len(step_id) > _SURELY_SHORT:
            check_step_id(step_id)  # now: what a body has done under an id that cannot be stored would be lost
        return step_id

    def give_back(self, step_id: str) -> bool:
        """Undoes `identity`, if this was the last one taken of its name; returns whether it was."""
        name, _, occurrence = step_id.removeprefix(self.prefix).partition("#")
        counts = self._counts
        if counts is None or not step_id.startswith(self.prefix) or counts.get(name, 0) != int(occurrence or 1):
            return False
        counts[name] -= 1
        return True

    def rename(self, label: str) -> None:
        """Gives the scope another name, before anything was called in it.

        asyncio.create_task(..., name=...) of Python 3.11 creates the task first and names it right after; the
        occurrence taken for the default name is then given back.
        """
        if self._counts is not None or self.parent is None:
            return
        counts = self.parent._counts
        if counts is not None and counts.get(self._label) == self._occurrence:
            counts[self._label] -= 1
        self._name(self.parent, label)

    def _name(self, parent: Scope, label: str) -> None:
        self._label = escape(label) + "/"
        parent.identity(self._label)
        assert parent._counts is not None
        self._occurrence = parent._counts[self._label]
        own = numbered(self._label[:-1], self._occurrence)
        self.prefix = f"{parent.prefix}{own}/"
