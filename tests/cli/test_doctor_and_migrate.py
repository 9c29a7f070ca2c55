"""What doctor finds, and migrations from the command line."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from kagzi.clock import SystemClock
from kagzi.core.instant import SECOND
from kagzi.settings import Settings, variable
from kagzi.version import __version__
from tests.cli.conftest import Result, Shell, served


def components(done: Result) -> dict[str, str]:
    return {component["name"]: component["status"] for component in done.json["components"]}


def test_a_new_project_is_well_and_is_left_alone(shell: Shell) -> None:
    done = shell.afresh("doctor", "--json")
    assert done.code == 0, done
    assert components(done) == {"database": "healthy", "migrations": "degraded"}
    assert done.json["counts"] is None
    assert sorted(path.name for path in shell.directory.iterdir()) == ["pyproject.toml"]


def test_sqlite_in_use(shell: Shell) -> None:
    shell("start", "checkout")
    done = shell("doctor", "--json")
    assert done.code == 0, done
    found = done.json
    assert set(found) == {"status", "versions", "url", "settings", "components", "counts"}
    assert found["status"] == "healthy"
    assert components(done) == dict.fromkeys(("database", "migrations", "coordinator", "workers", "clocks"), "healthy")
    assert found["counts"] == {"pending": 1, "running": 0, "sleeping": 0, "workers_online": 0, "workers_draining": 0}
    assert found["versions"]["sqlite"] == sqlite3.sqlite_version
    assert [setting["name"] for setting in found["settings"]] == [variable(name) for name in Settings.__struct_fields__]
    quick = shell("doctor", "--quick")
    assert quick.code == 0, quick
    assert [line.split("\t")[:2] for line in quick.out.splitlines()] == [
        ["database", "healthy"],
        ["migrations", "healthy"],
    ]


def test_a_dead_installation_is_told_of(shell: Shell) -> None:
    """A run whose worker died an hour ago, and nobody there to notice."""
    shell("start", "checkout")
    with sqlite3.connect(shell.directory / ".kagzi" / "kagzi.db") as connection:
        connection.execute(
            "UPDATE workflow_runs SET status = 'RUNNING', token = 'x', lease_expires_at = created_at - 3600000000,"
            " started_at = created_at, claim_key = NULL"
        )
    connection.close()
    done = shell("doctor", "--json")
    assert done.code == 1, done
    assert done.json["status"] == "unhealthy"
    assert components(done)["coordinator"] == "unhealthy"


def test_workers_that_do_not_know_what_is_in_force_or_differ_in_their_python_are_named(shell: Shell) -> None:
    for command in (("queues", "pause", "mail"), ("limits", "set", "--queue", "sms", "--concurrency", "2")):
        assert shell(*command).code == 0
    now = SystemClock().now() + 3600 * SECOND  # so that nobody takes them for lost, however slow this is
    with sqlite3.connect(shell.directory / ".kagzi" / "kagzi.db") as connection:
        for number, (queue, version) in enumerate(
            [("mail", ""), ("sms", "0.0.9"), ("mail", __version__), ("other", "0.0.9")]
        ):
            connection.execute(
                "INSERT INTO workers (worker_id, namespace, queues, types, versions, hostname, pid, version, "
                "concurrency, status, registered_at, last_heartbeat_at, labels) "
                "VALUES (?, 'default', ?, '[\"send\"]', '[\"\"]', 'blue', ?, ?, 1, 'ONLINE', ?, ?, ?)",
                (
                    *(f"00000000-0000-4000-8000-00000000000{number}", f'["{queue}"]', number, version),
                    *(now + number, now, b'{"labels":{"python":"3.%d.1"}}' % (11 + number)),
                ),
            )
    connection.close()
    for url in ("sqlite:///.kagzi/kagzi.db", served(shell)):
        done = shell("doctor", "--json", "--url", url)
        assert done.code == 0, done
        (limits,) = (each for each in done.json["components"] if each["name"] == "limits")
        assert limits["status"] == "degraded"
        assert limits["message"].partition("drain them: ")[2] == (
            "00000001 (process 1 on blue, version 0.0.9): queue sms (concurrency); "
            "00000000 (process 0 on blue, version unknown): queue mail (pause)"
        )
        (pythons,) = (each for each in done.json["components"] if each["name"] == "pythons")
        assert pythons["status"] == "degraded"
        assert "(queue mail: 3.11 (1), 3.13 (1))" in pythons["message"]


def test_sources_and_masks(shell: Shell) -> None:
    (shell.directory / "kagzi.toml").write_text("namespace = 'shop'\n[worker]\npoll_timeout_secs = 5\n")
    done = shell(
        "doctor", "--json", "--url", "postgresql://nobody:hunter2@127.0.0.1:1/nothing", KAGZI_LOG_LEVEL="error"
    )
    assert done.code == 4, done
    assert components(done) == {"database": "unhealthy"}
    settings: dict[str, Any] = {
        setting["name"]: (setting["value"], setting["source"]) for setting in done.json["settings"]
    }
    assert settings["KAGZI_URL"] == ("postgresql://nobody:***@127.0.0.1:1/nothing", "--url")
    assert settings["KAGZI_NAMESPACE"] == ("shop", "kagzi.toml")
    assert settings["KAGZI_WORKER_POLL_TIMEOUT_SECS"] == ("5", "kagzi.toml")
    assert settings["KAGZI_LOG_LEVEL"] == ("error", "KAGZI_LOG_LEVEL")
    assert settings["KAGZI_SERVER_PORT"] == ("50051", "default")
    assert "hunter2" not in done.out + done.err


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"KAGZI_SERVER_PROT": "1"}, "did you mean KAGZI_SERVER_PORT?"),
        ({"KAGZI_LOG_LEVEL": "loud"}, "KAGZI_LOG_LEVEL must be debug, info, warning or error, not 'loud'"),
        ({"KAGZI_WATCHDOG_INTERVAL_SECS": "1"}, "use KAGZI_COORDINATOR_INTERVAL_SECS"),
        ({"KAGZI_URL": "hunter2"}, "KAGZI_URL must be a URL such as sqlite:///orders.db"),
    ],
)
def test_bad_settings(shell: Shell, environ: dict[str, str], words: str) -> None:
    for command in (["doctor"], ["server"]):
        done = shell(*command, **environ)
        assert done.code == 2, (command, done)
        assert words in done.err + done.out
        assert "hunter2" not in done.err + done.out
        assert "Traceback" not in done.err


def test_a_server_does_not_listen_to_everybody(shell: Shell) -> None:
    done = shell("server", "--host", "0.0.0.0")
    assert done.code == 2, done
    assert "refusing to listen on 0.0.0.0 without TLS and API keys" in done.err
    assert not (shell.directory / ".kagzi").exists()


def test_migrations_on_sqlite(shell: Shell) -> None:
    dry = shell("migrate", "--dry-run", "--json")
    assert dry.code == 0, dry
    assert dry.json["missing"][0] == {"number": 1, "name": "initial"}
    assert dry.json["applied"] == []
    assert shell("migrate").out.startswith("applied 0001 initial\n")
    again = shell("migrate")
    assert (again.code, again.out) == (0, "")
    assert "nothing to do" in again.err
    with sqlite3.connect(shell.directory / ".kagzi" / "kagzi.db") as connection:
        connection.execute("INSERT INTO schema_migrations (number, name, checksum) VALUES (9999, 'future', 'x')")
    connection.close()
    newer = shell("migrate")
    assert newer.code == 1, newer
    assert "a newer version has migrated it" in newer.err
    assert shell("doctor").code == 1


@pytest.mark.postgres
def test_five_migrations_at_once_on_an_empty_database(shell: Shell, fresh_database: str) -> None:
    processes = [shell.spawn("migrate", KAGZI_DB_URL=fresh_database) for _ in range(5)]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    done = shell("doctor", "--json", KAGZI_URL=fresh_database)
    assert done.code == 0, done
    assert done.json["status"] == "healthy"


@pytest.mark.postgres
def test_postgres_before_and_after(shell: Shell, fresh_database: str) -> None:
    before = shell("doctor", "--json", KAGZI_URL=fresh_database)
    assert before.code == 0, before
    assert components(before) == {"database": "healthy", "migrations": "degraded"}
    shell("start", "checkout", KAGZI_URL=fresh_database)
    after = shell("doctor", "--json", KAGZI_URL=fresh_database)
    assert after.json["counts"]["pending"] == 1, after
    wrong = shell("doctor", "--json", KAGZI_URL=fresh_database + "_not_there")
    assert wrong.code == 4, wrong
    assert "Check user, password and database in the URL" in wrong.out
