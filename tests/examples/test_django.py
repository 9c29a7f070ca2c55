"""The Django project runs as its first lines say: several servers and workers, one killed, one reloaded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.examples.test_projects import EXAMPLES, PATIENCE, free_port, until_up


class Project:
    """A copy of the example with a database of its own."""

    def __init__(self, directory: Path, postgres: str | None) -> None:
        self.directory = directory / "project"
        shutil.copytree(EXAMPLES / "django_shop", self.directory)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("KAGZI_", "PG"))}
        self.environment |= {"SHOP_DEBUG": "0", "KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS": "3"}
        if postgres is None:
            self.environment["SHOP_FILE"] = str(directory / "shop.db")
        else:
            there = urlsplit(postgres)
            self.environment |= {
                "PGDATABASE": there.path[1:],
                "PGUSER": there.username or "",
                "PGHOST": there.hostname or "",
                "PGPORT": str(there.port),
            }
        subprocess.run([sys.executable, "manage.py", "migrate"], **self._how(), check=True, timeout=PATIENCE)
        self.client: httpx.Client

    def _how(self, **more: str) -> dict[str, object]:
        return {"cwd": self.directory, "env": self.environment | more}

    @contextmanager
    def program(self, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process, ended in order when the block is left, which must succeed if it was not killed before."""
        process = subprocess.Popen([sys.executable, *arguments], **self._how(**environment))  # type: ignore[call-overload]
        try:
            yield process
            if process.poll() != -signal.SIGKILL:
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def served(self) -> Iterator[None]:
        port = free_port()
        bound = ("--bind", f"127.0.0.1:{port}", "--workers", "2", "--worker-tmp-dir", str(self.directory))
        with (
            self.program("-m", "gunicorn", *bound, "shop.wsgi"),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as self.client,
        ):
            until_up(self.client)
            yield

    def place(self, number: str) -> dict[str, str]:
        answer = self.client.post(f"/orders/{number}")
        assert answer.status_code == 202, answer.text
        placed: dict[str, str] = answer.json()
        return placed

    def look(self, number: str) -> dict[str, object]:
        order: dict[str, object] = self.client.get(f"/orders/{number}").json()
        return order


def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.1)


@pytest.mark.faults
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_orders_survive_a_killed_worker(tmp_path: Path, request: pytest.FixtureRequest, database: str) -> None:
    project = Project(tmp_path, request.getfixturevalue("postgres_database") if database == "postgres" else None)
    with ExitStack() as stack:
        stack.enter_context(project.served())
        assert project.place("once") == project.place("once")  # whichever process answers
        assert project.client.get("/orders/unknown").status_code == 404
        victim = stack.enter_context(project.program("manage.py", "kagzi_worker", SHOP_BANK_SECONDS="60"))
        until(lambda: project.look("once")["receipts"] == 1)  # so its worker is up, and holds the run
        victim.kill()
        victim.wait()
        stack.enter_context(project.program("manage.py", "kagzi_worker", "-c", "10", "--processes", "2"))
        for number in ("a", "b", "c"):
            project.place(number)
        for number in ("a", "b", "c"):
            until(lambda number=number: project.look(number) == {"payment": f"payment-{number}", "receipts": 1})  # type: ignore[misc]
        until(lambda: project.look("once")["payment"] == "payment-once")  # after the lease of the one that died


@pytest.mark.faults
def test_the_worker_starts_anew_when_a_file_changes(tmp_path: Path) -> None:
    project = Project(tmp_path, None)
    code = project.directory / "shop" / "workflows.py"
    with project.served(), project.program("manage.py", "kagzi_worker", "--reload") as worker:
        project.place("before")
        until(lambda: project.look("before")["payment"] == "payment-before")
        code.write_text(code.read_text().replace("payment-{number}", "paid-{number}"))
        tries = iter(range(1000))

        def is_new() -> bool:
            code.touch()  # the first change may have come before Django looked at the file for the first time
            number = f"after-{next(tries)}"
            project.place(number)
            until(lambda: project.look(number)["payment"])
            return project.look(number)["payment"] == f"paid-{number}"

        until(is_new)
        assert worker.poll() is None
