"""In a server's own process asyncpg takes lists for arrays and nothing else."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import asyncpg
import pytest
from asyncpg.protocol import protocol

from kagzi.store.postgres import arrays

COLUMNS = "SELECT $1::text[], $2::bigint[], $3::bytea[], $4::uuid[], $5::integer[], $6::text[]"
UUID = "0190a5f2-7c3e-7d31-9a51-0c8e6b1f2a44"


async def test_lists_are_encoded_as_ever(postgres_url: str) -> None:
    """The whole suite expects lists (conftest.py), so that every statement of ours is tried as in a server."""
    assert protocol.IterableABC == protocol.SizedABC == (list, tuple)  # type: ignore[attr-defined]
    connection = await asyncpg.connect(postgres_url)
    try:
        columns = [["a", None, ""], [1, None, -(2**63)], [b"", b"\0", None]]
        row = await connection.fetchrow(COLUMNS, *columns, (UUID, None), [], [["a", "b"], ["c", "d"]])
        assert row is not None
        assert list(row.values())[:3] == columns
        assert [None if each is None else str(each) for each in row[3]] == [UUID, None]
        assert list(row.values())[4:] == [[], [["a", "b"], ["c", "d"]]]
        for wrong in ({"a"}, "ab", 7):
            with pytest.raises(asyncpg.DataError, match="sized iterable"):
                await connection.fetch("SELECT $1::text[]", wrong)
    finally:
        await connection.close()


def test_a_version_that_asks_in_another_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(IterableABC=object)
    monkeypatch.setattr(arrays, "protocol", other)
    arrays.expect_lists()
    assert vars(other) == {"IterableABC": object}


@pytest.mark.parametrize(
    ("url", "expected"), [("postgresql://nowhere/x", "list"), ("Postgres://nowhere/x", "list"), ("memory://", "ABC")]
)
def test_a_server_of_postgresql_does_so_and_a_program_does_not(url: str, expected: str) -> None:
    script = f"""
from asyncpg.protocol import protocol
from kagzi import serve
from kagzi.settings import Settings

def kind():
    return "list" if protocol.IterableABC == (list, tuple) else type(protocol.IterableABC).__name__[:3]

class Server(serve.Server):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        print(kind())

    async def run(self):
        print(kind())

serve.Server = Server
serve.serve(Settings(url={url!r}))
"""
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (made.stdout.split(), made.stderr) == (["ABC", expected], "")
