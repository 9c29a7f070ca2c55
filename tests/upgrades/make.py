"""Makes the stored databases of earlier versions: python -m tests.upgrades.make <commit> <name>

Checks the commit out beside the repository, lets its code make the runs of `tests/upgrades/program.py`, and writes
`databases/<name>.sqlite.sql` and `databases/<name>.postgres.sql`. What is stored is never made again: it is what people
have.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from kagzi.testing.postgres import PostgresServer, find_binaries

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def run_program(checkout: Path, url: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    # Not by its path, which would be in the tracebacks of errors.
    command = [sys.executable, "-c", "exec(compile(open('program.py').read(), 'program.py', 'exec'))", url]
    subprocess.run(command, env=environment, cwd=HERE, check=True)


def dump_sqlite(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        # Nobody else's retention may reach them, however old they become.
        connection.execute("UPDATE namespaces SET retention_days = 36500")
        return "\n".join(connection.iterdump()) + "\n"


def dump_postgres(url: str) -> str:
    command = [find_binaries() / "pg_dump", "--inserts", "--no-owner", "--no-privileges", url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Comments, and what only psql or one version of PostgreSQL understands.
    lines = [line for line in text.splitlines() if line and not re.match(r"--|\\|SET transaction_timeout", line)]
    lines.append("UPDATE kagzi.namespaces SET retention_days = 36500;")
    return "\n".join(lines) + "\n"


def main(commit: str, name: str) -> None:
    with TemporaryDirectory() as directory, PostgresServer() as server:
        checkout, file = Path(directory) / "checkout", Path(directory) / "runs.db"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", checkout, commit], cwd=ROOT, check=True)
        try:
            run_program(checkout, f"sqlite:///{file}")
            run_program(checkout, server.url)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)
        (HERE / "databases" / f"{name}.sqlite.sql").write_text(dump_sqlite(file))
        (HERE / "databases" / f"{name}.postgres.sql").write_text(dump_postgres(server.url))


if __name__ == "__main__":
    main(*sys.argv[1:])
