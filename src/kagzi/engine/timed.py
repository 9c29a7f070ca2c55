"""A store that measures how long its calls take and how often they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from kagzi.api.operations import Write
from kagzi.core.instant import SECOND
from kagzi.errors import KagziError
from kagzi.metrics.counters import Metrics
from kagzi.store.protocol.changes import Changed
from kagzi.store.protocol.nouns import NOUNS, call_name
from kagzi.store.protocol.store import Store

# Every call of the database, but for those that are no question: listening for ever, and transactions of others.
OPERATIONS: Final = {noun: verbs - {"listen"} for noun, verbs in NOUNS.items() if noun != "transactions"}


class _TimedStore:
    """Passes everything on."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        for noun in OPERATIONS:
            setattr(self, noun, _TimedNoun(store, noun, metrics))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _TimedNoun:
    """Passes the calls of one noun on. Which method that is, is looked up at each call: tests put others in their
    place."""

    def __init__(self, store: Store, noun: str, metrics: Metrics) -> None:
        self._store = store
        self._noun = noun
        self._metrics = metrics
        self._time = asyncio.get_running_loop().time

    def __getattr__(self, verb: str) -> Any:
        if verb not in OPERATIONS[self._noun]:
            return getattr(getattr(self._store, self._noun), verb)
        timed = self._timed(verb)
        setattr(self, verb, timed)
        return timed

    def _timed(self, verb: str) -> Callable[..., Any]:
        store, noun, metrics, time = self._store, self._noun, self._metrics, self._time
        op = call_name(noun, verb)
        before, after = _BEFORE.get(op), _AFTER.get(op)

        async def timed(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(metrics, *args)
            begun = time()
            try:
                answer = await getattr(getattr(store, noun), verb)(*args, **kwargs)
            except Exception as error:
                metrics.store_errors.add((op, error.code if isinstance(error, KagziError) else "UNEXPECTED"))
                raise
            metrics.store_seconds[(op,)].observe(int((time() - begun) * SECOND))
            if after is not None:
                after(metrics, answer)
            return answer

        return timed


def _count_writes(metrics: Metrics, writes: Sequence[Write]) -> None:
    metrics.batch_size.observe(len(writes))


def _count_expired(metrics: Metrics, changed: Changed) -> None:
    for run in changed.runs:
        metrics.leases_expired.add((run.namespace,))


# What else is counted of a call, by its name: of its arguments, and of its answer.
_BEFORE: Final[dict[str, Callable[..., None]]] = {"apply": _count_writes}
_AFTER: Final[dict[str, Callable[..., None]]] = {"duties.recover_runs": _count_expired}


def timed(store: Store, metrics: Metrics) -> Store:
    """Returns this store, measured."""
    return cast("Store", _TimedStore(store, metrics))
