"""The columns that a run carries: given with its start, kept, and handed on as they are.

No statement computes with them, so all that is to be said of one stands in the table below. Statements name them by
`{{carried}}` and its like (`kagzi.store.columns`), records have fields of their names, and rows and messages are made
from the table, too. CONTRIBUTING.md shows how another column is added.

    StartRun, ChildStart ──▶ row ──▶ Claim    what is `to_worker`
                              │ ───▶ Run      what is `to_people`
                              │ ───▶ row of its failure handler: what is `to_handler`
                              └────▶ rows of its repeats, its forks, and of what a schedule fires: all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from kagzi.core.compiled import compiled
from kagzi.core.tags import decode_tags, encode_tags


def _or_none(text: str | None) -> str | None:
    return text or None


class Carried(Struct, frozen=True):
    """A column that a run carries, and who gets it."""

    name: str
    kept_as: type = str  # or bytes, int, bool: decides the column's type in a database
    to_worker: bool = False  # a field of Claim
    to_people: bool = False  # a field of Run
    to_handler: bool = False  # the run that handles its failure has it, too
    keep: Callable[[Any], Any] | None = None  # how it is written, if not as it is
    read: Callable[[Any], Any] | None = None  # and read


CARRIED: Final = (
    Carried("retry_policy", bytes, to_worker=True),
    Carried("trace_context", to_worker=True, to_handler=True),
    Carried("on_failure", to_people=True),
    Carried("on_failure_queue"),
    Carried("tags", to_people=True, keep=encode_tags, read=decode_tags),
    Carried("limit_key", to_people=True, to_handler=True, read=_or_none),
)

TO_WORKER: Final = tuple(column for column in CARRIED if column.to_worker)
TO_PEOPLE: Final = tuple(column for column in CARRIED if column.to_people)
TO_HANDLER: Final = tuple(column for column in CARRIED if column.to_handler)


def kept_columns(given: Sequence[object]) -> list[list[Any]]:
    """Returns what is kept of many starts, in the order of the table: a column for each."""
    return [list(map(get, given) if keep is None else map(keep, map(get, given))) for get, keep in _COLUMNS]


_COLUMNS: Final = [(attrgetter(column.name), column.keep) for column in CARRIED]

_VALUES: Final = [f"given.{each.name}" if each.keep is None else f"{each.name}(given.{each.name})" for each in CARRIED]

# Returns the fields of a Claim that are carried, from the start of a run that is not read back.
born_with: Final[Callable[[object], dict[str, Any]]] = compiled(
    "given", f"{{{', '.join(f'{each.name!r}: given.{each.name}' for each in TO_WORKER)}}}", {}
)

# Returns what is kept of one StartRun or ChildStart, in the order of the table.
kept_of: Final[Callable[[object], tuple[Any, ...]]] = compiled(
    "given", f"({', '.join(_VALUES)},)", {column.name: column.keep for column in CARRIED}
)
