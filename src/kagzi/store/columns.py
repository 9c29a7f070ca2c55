"""How statements name the columns that a run carries (`kagzi.core.carried`), in their order.

A statement has

* `{{carried}}` for their names, `{{carried(r)}}` for those of the table `r`;
* `{{carried_to_worker(r)}}`, `{{carried_to_people(r)}}`, `{{carried_to_handler(r)}}` for some of them;
* `{{carried_values(?)}}` for a value of each, and `{{carried_values(?22)}}` for values that are numbered from 22 on;
* `{{carried_parameters($20)}}` for `$20::text AS name` and so on, `{{carried_arrays($20)}}` for `$20::text[]`.

Rows become records by a `reader`, which names their columns in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kagzi.core.carried import CARRIED, TO_HANDLER, TO_PEOPLE, TO_WORKER, Carried
from kagzi.core.compiled import compiled

T = TypeVar("T")

_TYPES: Final[dict[type, str]] = {str: "text", bytes: "bytea", int: "bigint", bool: "boolean"}  # PostgreSQL's


def _names(columns: tuple[Carried, ...]) -> Callable[..., str]:
    def make(table: str = "") -> str:
        return ", ".join(f"{table}.{column.name}" if table else column.name for column in columns)

    return make


def _values(first: str) -> str:
    if first == "?":
        return ", ".join("?" for _ in CARRIED)
    return ", ".join(_numbered(first))


def _parameters(first: str) -> str:
    numbered = zip(_numbered(first), CARRIED, strict=True)
    return ", ".join(f"{value}::{_TYPES[column.kept_as]} AS {column.name}" for value, column in numbered)


def _arrays(first: str) -> str:
    numbered = zip(_numbered(first), CARRIED, strict=True)
    return ", ".join(f"{value}::{_TYPES[column.kept_as]}[]" for value, column in numbered)


def _numbered(first: str) -> list[str]:
    mark, number = first[0], int(first[1:])
    return [f"{mark}{number + place}" for place in range(len(CARRIED))]


MAKERS: Final[Mapping[str, Callable[..., str]]] = {
    "carried": _names(CARRIED),
    "carried_to_worker": _names(TO_WORKER),
    "carried_to_people": _names(TO_PEOPLE),
    "carried_to_handler": _names(TO_HANDLER),
    "carried_values": _values,
    "carried_parameters": _parameters,
    "carried_arrays": _arrays,
}


# A run as both stores read it (`shown_run` in the fragments.sql of each), for a `reader`.
SHOWN_RUN: Final = """
    namespace run_id external_id task_queue workflow_type version _ priority attempts executions crashes created_at
    available_at started_at finished_at deadline_at worker_id input output error _ _ _ parent_run_id parent_step_id
    parent_policy depth handles_run_id superseded_by former_id origin incarnation schedule_id scheduled_for seed_run_id
    parent_attempt debounce_key joins joined_at joined_by timezone lineage
"""


def reader(
    record: type[T],
    columns: str,
    carried: tuple[Carried, ...],
    *,
    read: Mapping[str, Callable[[Any], Any]],
    given: Sequence[str],
) -> Callable[..., T]:
    """Returns a function that makes a record of a row, which has `columns` in this order, and then what is carried.

    Each is the field of its name; one that is called `_` is none. `read` makes the value of a field from that of its
    column. What is `given` are fields whose values follow the row as arguments.
    """
    made = {**{column.name: column.read for column in carried if column.read is not None}, **read}
    fields = [f"{name}={name}" for name in given]
    for place, name in enumerate([*columns.split(), *(column.name for column in carried)]):
        if name != "_":
            fields.append(f"{name}=read_{name}(row[{place}])" if name in made else f"{name}=row[{place}]")
    names = {"record": record, **{f"read_{name}": function for name, function in made.items()}}
    function: Callable[..., T] = compiled(", ".join(["row", *given]), f"record({', '.join(fields)})", names)
    return function
