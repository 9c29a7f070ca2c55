"""Every statement that touches what belongs to a namespace says which one, or stands below with its reason.

That the answers are right is checked by tests/rpc/test_security.py; this is so that nobody forgets it in a new
statement.
"""

from __future__ import annotations

import re

import pytest

from kagzi.store.postgres.statements import STATEMENTS
from kagzi.store.sqlite.statements import SQL

_BELONGS = re.compile(r"\b(workflow_runs|step_runs|workflow_payloads|workers|worker_events)\b")
_SAYS_WHICH = re.compile(
    # Compared with what was passed in, or with the namespace of a row that was found by such a comparison.
    r"\bnamespace\s*=\s*(\$\d+|\?\d*|\w+\.namespace\b|json_extract\()"
    # New rows bring it along.
    r"|INSERT INTO (kagzi\.)?(workflow_runs|step_runs|workflow_payloads)\b[^(]*\(\s*(run_id, )?namespace\b"
    r"|^INSERT INTO worker_events \(namespace\b"
)

_ALL = "a background duty or a count of the server's own, for all namespaces; takes no id from a caller"
_FOUND = "takes ids that another statement of the same transaction has found, not a caller's"

EXCEPTIONS = {
    "postgres": {
        "is_any_aside": _ALL,
        "expire_workers": _ALL,
        "find_dead_leases": _ALL,
        "find_overdue_runs": _ALL,
        "live_offers": _ALL,
        "lock_due_schedules": _ALL,
        "running_loads": _ALL,
        "worker_loads": _ALL,
    },
    "sqlite": {
        "delete_worker": _FOUND,
        "delete_worker_event": _FOUND,
        "find_overdue_cancels": _ALL,
        "find_overdue_runs": _ALL,
        "find_silent_workers": _ALL,
        "first_queue_after": _ALL,
        "horizon": _ALL,
        "live_offers": _ALL,
        "is_any_aside": _ALL,
        "renew_leases": _FOUND,
        "running_loads": _ALL,
        "survey": _ALL,
        "worker_loads": _ALL,
    },
}
STORES = {"postgres": STATEMENTS, "sqlite": SQL}


@pytest.mark.parametrize("store", STORES)
def test_every_statement_is_confined_to_a_namespace(store: str) -> None:
    unconfined = {
        name for name, text in STORES[store].items() if _BELONGS.search(text) and not _SAYS_WHICH.search(text)
    }
    assert unconfined == set(EXCEPTIONS[store])


@pytest.mark.parametrize("store", STORES)
def test_what_takes_an_id_for_all_namespaces_has_found_it_itself(store: str) -> None:
    takes_id = re.compile(r"\b(run_id|worker_id|external_id|step_id|token|event_id)\s*(=|IN)\s*\(?\s*(\$|\?|SELECT)")
    taking = {name for name in EXCEPTIONS[store] if takes_id.search(STORES[store][name])}
    assert taking == {name for name, reason in EXCEPTIONS[store].items() if reason is _FOUND}
