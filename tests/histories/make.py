"""Records the histories of this version: `python -m tests.histories.make`. Those that are there stay as they are."""

from __future__ import annotations

import sysconfig
from contextlib import suppress
from pathlib import Path

from kagzi import WorkflowCancelled
from kagzi.sdk.histories import History, export_history
from kagzi.testing import run_virtually
from kagzi.version import __version__
from tests.histories.program import STORIES, app

RECORDED = Path(__file__).parent / "recorded"
ROOT = Path(__file__).parents[2]


def record() -> dict[str, History]:
    async def main() -> dict[str, History]:
        histories = {}
        for name, begin in STORIES.items():
            handle = await begin()
            with suppress(WorkflowCancelled):
                await handle.result()
            run = await app.engine.workflows.get("default", handle.id)
            histories[name] = await export_history(app.engine, run)
        return histories

    return run_virtually(app, main)


def without_folder(recorded: bytes) -> bytes:
    """Names the files of tracebacks as they are named in the repository or in packages, wherever those are."""
    for folder in (sysconfig.get_path("purelib"), ROOT):
        recorded = recorded.replace(f"{folder}/".encode(), b"")
    return recorded


if __name__ == "__main__":
    folder = RECORDED / __version__
    folder.mkdir(parents=True, exist_ok=True)
    for name, history in record().items():
        if not (folder / f"{name}.json").exists():
            (folder / f"{name}.json").write_bytes(without_folder(history.to_json()))
