"""A bulk command says by its exit code whether it came to its end and changed every run that it could."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.cli.bulk import finish
from kagzi.core.job import Job, JobAction, JobStatus


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize(
    ("status", "counts", "code"),
    [
        ("COMPLETED", {}, 0),
        ("COMPLETED", {"done": 0, "matched": 0}, 0),
        ("COMPLETED", {"done": 2, "skipped": 1}, 0),  # one that could not be changed is no failure
        ("COMPLETED", {"done": 2, "failed": 1}, 1),
        ("FAILED", {"error": "the filter"}, 1),
        ("FAILED", {"done": 0, "failed": 3}, 1),
        ("CANCELLED", {}, 1),
        ("CANCELLED", {"done": 1}, 1),
    ],
)
def test_exit_codes(
    status: str, counts: dict[str, Any], code: int, json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, Any] = {"matched": 3, "done": 3, "skipped": 0, "failed": 0, "filter": b"{}", **counts}
    job = Job(
        namespace="default",
        job_id="01900000-0000-7000-8000-000000000001",
        action=JobAction("retry"),
        rate=None,
        children=False,
        status=JobStatus(status),
        created_by="ann",
        created_at=0,
        **fields,
    )
    found = 0
    try:
        finish(job, json=json)
    except SystemExit as exited:
        found = int(exited.code or 0)
    assert found == code
    assert status in capsys.readouterr().out  # it has said so first
