"""Runs that begin anew in place: `ContinueRun`, after its run was moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.api.operations import ContinueRun
from kagzi.core.signal import GIVEN_KEY_KEPT, MADE_KEY_KEPT
from kagzi.store.postgres.single import INLINE_BYTES
from kagzi.store.postgres.statements import STATEMENTS

if TYPE_CHECKING:
    from kagzi.store.postgres.connection import Connection

_KEEP_FIRST_INPUTS = STATEMENTS["keep_first_inputs"]
_CONTINUE_RUNS = STATEMENTS["continue_runs"]
_STORE_INPUTS = STATEMENTS["store_inputs"]
_DROP_INCARNATIONS = STATEMENTS["drop_incarnations"]
_SET_INCARNATIONS_ASIDE = STATEMENTS["set_incarnations_aside"]
_SETTLE_TAKEN_SIGNALS = STATEMENTS["settle_taken_signals"]
_FORGET_TAKEN_SIGNALS = STATEMENTS["forget_taken_signals"]

Continued = tuple[str, str, ContinueRun]  # namespace and run id


async def continue_runs(connection: Connection, runs: list[Continued]) -> None:
    keys = [namespace for namespace, _, _ in runs], [run_id for _, run_id, _ in runs]
    inline = [anew.input if len(anew.input) <= INLINE_BYTES else None for _, _, anew in runs]
    await connection.execute(_KEEP_FIRST_INPUTS, *keys)
    await connection.execute(_CONTINUE_RUNS, *keys, inline, [anew.version for _, _, anew in runs])
    large = [(namespace, run_id, anew.input) for namespace, run_id, anew in runs if len(anew.input) > INLINE_BYTES]
    if large:
        await connection.execute(_STORE_INPUTS, *(list(column) for column in zip(*large, strict=True)))
    await connection.execute(_DROP_INCARNATIONS, *keys)
    await connection.execute(_SET_INCARNATIONS_ASIDE, *keys)
    await connection.execute(_SETTLE_TAKEN_SIGNALS, *keys)
    await connection.execute(_FORGET_TAKEN_SIGNALS, *keys, MADE_KEY_KEPT, GIVEN_KEY_KEPT)
