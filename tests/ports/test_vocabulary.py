"""A run has the same words in Python, in JSON, in commands and in the glossary."""

from __future__ import annotations

import inspect
from typing import Any

from msgspec.structs import fields

from kagzi import Kagzi
from kagzi.cli.runs import list_runs
from kagzi.http.runs import RunsQuery
from kagzi.http.starts import StartBody
from kagzi.ports.documents.runs import RunDocument, StepDocument
from kagzi.sdk.records import RunRecord, StepRecord
from tests.repository.test_architecture import ROOT

# The words of the database, and of the wire where clients know them.
INSIDE = {"external_id", "task_queue", "workflow_type", "failure"}


def words(record: type[Any]) -> set[str]:
    """The names of its fields; what is decoded when it is asked for has the name of a property."""
    return {field.name.lstrip("_") for field in fields(record)} - {"read", "input_context", "output_context"}


def test_a_record_and_its_document_have_the_same_words() -> None:
    # A sentence, and runs that are looked for, both when somebody asks.
    assert words(RunDocument) - words(RunRecord) == {"why", "handled_by"}
    assert words(RunRecord) <= words(RunDocument)
    assert words(StepRecord) - words(StepDocument) == {"completed_seq"}  # of use to replay alone
    assert words(StepDocument) <= words(StepRecord)


def test_runs_are_found_and_started_by_the_words_they_are_shown_with() -> None:
    asked = {
        "Python": set(inspect.signature(Kagzi.runs).parameters),
        "HTTP": words(RunsQuery),
        "commands": {option.lstrip("-") for parameter in list_runs.params for option in parameter.opts},
        "starts": words(StartBody),
    }
    for home, names in asked.items():
        assert names & INSIDE == set(), home
        assert names >= {"workflow", "queue"}, home
    assert {"status", "parent"} <= asked["Python"] & asked["HTTP"] & asked["commands"]


def test_the_glossary_has_the_words() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for word in ("error", "id", "namespace", "queue", "run", "step", "version", "workflow"):
        assert f"| **{word}** |" in glossary, word
    assert not words(RunRecord) & INSIDE
    assert not words(StepRecord) & INSIDE
