"""Converts what a run carries (`kagzi.core.carried`), for messages that have fields of the same names."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

from kagzi.core.carried import Carried


class CarriedFields:
    """The fields of a message and of a record that stand for these columns, except those that have another form
    there."""

    def __init__(self, message: type[Message], columns: tuple[Carried, ...], otherwise: frozenset[str] = frozenset()):
        names = [column.name for column in columns if column.name not in otherwise]
        fields = [message.DESCRIPTOR.fields_by_name[name] for name in names]
        self._getters = [(name, attrgetter(name)) for name in names]
        self._optional = [field.name for field in fields if field.has_presence]
        self._maps = [field.name for field in fields if not field.has_presence]

    def to_wire(self, record: object) -> dict[str, Any]:
        return {name: get(record) for name, get in self._getters}

    def from_wire(self, message: Message) -> dict[str, Any]:
        """Returns the fields that are there; the others have the defaults of the record."""
        found = {name: getattr(message, name) for name in self._optional if message.HasField(name)}
        for name in self._maps:
            if values := getattr(message, name):
                found[name] = dict(values)
        return found
