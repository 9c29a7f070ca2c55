"""Every statement that touches what belongs to a namespace says which one, or stands below with its reason.

That the answers are right is checked by tests/rpc/test_security.py; this is so that nobody forgets it in a new
statement.

A statement is read as text. Each of its tables has to be bound: compared with a namespace that was passed in, or with
that of something which is bound itself. That two tables have the same namespace says nothing about which one it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kagzi.store.postgres
from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.sqlite.statements import SQL

STORES: Final = {"postgres": STATEMENTS, "sqlite": SQL}
SCHEMA: Final = Path(kagzi.store.postgres.__file__).parent / "schema.sql"
# A key of the server itself has no namespace, and keys are found by their ids, which are one for all.
NOT_OURS: Final = {"api_keys", "namespaces"}


def tables() -> Iterator[str]:
    """Yields every table with a namespace, also one that is added tomorrow."""
    for definition in SCHEMA.read_text().split("CREATE TABLE kagzi.")[1:]:
        name, columns = definition.split(maxsplit=1)
        if re.search(r"^\s+namespace text", columns.split("\n);")[0], re.MULTILINE) and name not in NOT_OURS:
            yield name


TABLES: Final = frozenset(tables())
_NO_ALIAS: Final = (
    "AS|MATERIALIZED|SET|WHERE|ON|JOIN|LEFT|CROSS|INNER|ORDER|GROUP|LIMIT|RETURNING|USING|FOR|UNION|VALUES|SELECT|DEFAULT|"
    "NATURAL|HAVING|EXCEPT|INDEXED|WINDOW|OFFSET|DO"
)
_MENTION: Final = re.compile(
    rf"(\bINTO|\bFROM|\bJOIN|\bUPDATE|\bUSING|,)\s+(?:ONLY\s+|OR\s+\w+\s+)?(?:kagzi\.)?({'|'.join(TABLES)})\b(?!\.)"
    rf"(?:\s+(?:AS\s+)?(?!(?:{_NO_ALIAS})\b)(\w+))?",
    re.IGNORECASE,
)
_GIVEN: Final = r"(?:\$\d+|\?\d*|json_extract\()"
_COMPARED: Final = re.compile(rf"(?:\b(\w+)\.)?\bnamespace\s*=\s*(?:\w+\()?{_GIVEN}")
# What was passed in as a list, and what another part of the statement selects: that is looked at where it is selected.
_LISTS: Final = re.compile(r"(?:unnest|json_each)\s*\((?:[^()]|\([^()]*\))*\)(?:\s+WITH ORDINALITY)?\s+(?:AS\s+)?(\w+)")
_PARTS: Final = re.compile(
    r"(?:WITH|,)\s+(?:RECURSIVE\s+)?(\w+)(?:\s*\([^)]*\))?\s+AS\s+(?:NOT\s+)?(?:MATERIALIZED\s+)?\("
)
_SUBSELECTS: Final = re.compile(r"\)\s+AS\s+(\w+)")
_EQUAL: Final = (
    re.compile(r"\b(\w+)\.namespace\s*=\s*(?:coalesce\()?(\w+)\.namespace\b"),
    re.compile(r"\((\w+)\.namespace, [^)]*\)\s*(?:=|IN)\s*\((?:\s*SELECT )?(\w+)\.namespace"),
)


def unbound(text: str) -> set[str]:
    """Returns the tables of a statement, by their aliases, of which it does not say which namespace."""
    names: list[str] = []
    for mention in _MENTION.finditer(text):
        brings_it_along = re.match(r"[^(]*\([^)]*\bnamespace\b", text[mention.end(2) :])
        if mention[1].upper() != "INTO" or not brings_it_along:
            names.append(mention[3] or mention[2])
    parts = set(_PARTS.findall(text))
    bound = {found or "" for found in _COMPARED.findall(text)} | parts
    bound |= set(_LISTS.findall(text)) | set(_SUBSELECTS.findall(text))
    bound |= {
        alias for part, alias in re.findall(r"\b(?:FROM|JOIN|USING|,)\s+(\w+)\s+AS\s+(\w+)", text) if part in parts
    }
    if "" in bound:  # a column without an alias, of the first table or of one that has none
        bound |= set(names[:1]) | (TABLES & set(names))
    equal = [pair for pattern in _EQUAL for pair in pattern.findall(text)]
    while more := [pair for pair in equal if (pair[0] in bound) != (pair[1] in bound)]:
        bound.update(*more)
    return set(names) - bound


def test_every_table_with_a_namespace_is_known() -> None:
    assert {
        *("signals", "run_values", "schedules", "jobs", "limits", "limit_turns", "workflow_types", "default_versions"),
        *("workflow_runs", "step_runs", "workflow_payloads", "workers", "worker_events", "run_tags", "audit_log"),
    } <= TABLES


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("SELECT * FROM kagzi.signals AS s WHERE s.namespace = $1::text AND s.run_id = $2", ""),
        ("SELECT * FROM signals WHERE run_id = ?", "signals"),
        ("SELECT * FROM kagzi.signals AS s JOIN kagzi.workflow_runs AS r ON r.namespace = s.namespace", "s r"),
        ("SELECT * FROM jobs AS j JOIN limits AS l ON l.namespace = j.namespace WHERE j.namespace = ?", ""),
        ("SELECT * FROM jobs AS j JOIN limits AS l ON l.name = j.name WHERE j.namespace = ?", "l"),
        (
            "DELETE FROM run_values AS v USING unnest($1::text[]) AS k (namespace) WHERE v.namespace = k.namespace",
            "",
        ),
        ("INSERT INTO default_versions (workflow_type, namespace) VALUES (?, ?)", ""),
        ("INSERT INTO default_versions (workflow_type) VALUES (?)", "default_versions"),
        ("WITH a AS (SELECT * FROM schedules AS s WHERE s.schedule_id = ?) SELECT * FROM a", "s"),
        ("UPDATE limit_turns SET turn = ? WHERE EXISTS (SELECT 1 FROM jobs AS j WHERE j.namespace = ?)", "limit_turns"),
    ],
)
def test_equal_namespaces_alone_bind_nothing(statement: str, tables: str) -> None:
    assert unbound(statement) == set(tables.split())


_ALL = "a background duty or a count of the server's own, for all namespaces; takes no id from a caller"
_FOUND = "takes ids that another statement of the same transaction has found, not a caller's"
_JOINED = "joined by the columns of both, USING (namespace, …), to a table that is bound"
_ANY = "asks first whether there is a limit at all, anywhere"
_WORKER = "worker ids are one for all namespaces, and this one is a worker's that was found by its namespace"

EXCEPTIONS: Final[dict[str, dict[str, str]]] = {
    "postgres": {
        "is_any_aside": _ALL,
        "count_schedules": _JOINED,
        "expire_workers": _ALL,
        "find_cascades": _ALL,
        "find_dead_leases": _ALL,
        "find_overdue_cancels": _ALL,
        "find_overdue_runs": _ALL,
        "find_workers": _WORKER,
        "forget_cascades": _ALL,
        "get_worker": _WORKER,
        "horizon": _ALL,
        "limited_namespaces": _ALL,
        "live_offers": _ALL,
        "lock_due_schedules": _ALL,
        "lock_job": _ALL,
        "prune_jobs": _ALL,
        "prune_skips": _ALL,
        "prune_workers": _ALL,
        "running_loads": _ALL,
        "start_runs": _ANY,
        "survey": _ALL,
        "worker_loads": _ALL,
    },
    "sqlite": {
        "all_paused": _ALL,
        "count_schedules": _JOINED,
        "delete_skip": _FOUND,
        "delete_worker": _FOUND,
        "delete_worker_event": _FOUND,
        "find_cascades": _ALL,
        "find_dead_leases": _ALL,
        "find_due_schedules": _ALL,
        "find_gone_workers": _ALL,
        "find_old_audit": _ALL,
        "find_old_skips": _ALL,
        "find_old_worker_events": _ALL,
        "find_overdue_cancels": _ALL,
        "find_overdue_runs": _ALL,
        "find_overdue_steps": _ALL,
        "find_schedule_ends": _ALL,
        "find_silent_workers": _ALL,
        "find_unseen_types": _ALL,
        "find_workers": _WORKER,
        "first_queue_after": _ALL,
        "forget_cascades": _ALL,
        "get_worker": _WORKER,
        "horizon": _ALL,
        "limited": _ALL,
        "limited_namespaces": _ALL,
        "live_offers": _ALL,
        "is_any_aside": _ALL,
        "next_job": _ALL,
        "oldest_due": _ALL,
        "prolong_cancels": _ALL,
        "prune_audit": _FOUND,
        "prune_jobs": _ALL,
        "renew_leases": _FOUND,
        "running_loads": _ALL,
        "survey": _ALL,
        "walk_runs": _ALL,
        "worker_loads": _ALL,
    },
}


@pytest.mark.parametrize("store", STORES)
def test_every_statement_is_confined_to_a_namespace(store: str) -> None:
    unconfined = {name for name, text in STORES[store].items() if unbound(text)}
    assert unconfined == set(EXCEPTIONS[store])


@pytest.mark.parametrize("store", STORES)
def test_what_takes_an_id_for_all_namespaces_has_found_it_itself(store: str) -> None:
    takes_id = re.compile(r"\b(token|\w+_id)\s*(=|IN)\s*\(?\s*(\$|\?|SELECT)")
    bound = {name for name, reason in EXCEPTIONS[store].items() if reason is _WORKER}
    taking = {name for name in EXCEPTIONS[store] if takes_id.search(STORES[store][name])} - bound
    assert taking == {name for name, reason in EXCEPTIONS[store].items() if reason is _FOUND}
