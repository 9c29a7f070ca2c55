"""`kagzi server` as a process: workers and clients without a database, signals, outages, many at once."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kagzi.cli.doctor import UNEXPLAINED
from kagzi.testing.postgres import PostgresServer
from tests.cli.conftest import Shell, read_until
from tests.warm import Process

SERVING = health_pb2.HealthCheckResponse.SERVING


def port_of(server: Process) -> int:
    return ports_of(server)[0]


def ports_of(server: Process) -> tuple[int, int]:
    """For gRPC and for HTTP."""
    found = re.search(r"gRPC on 127\.0\.0\.1:(\d+), HTTP on 127\.0\.0\.1:(\d+)", read_until(server, "is ready"))
    assert found is not None
    return int(found[1]), int(found[2])


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def is_serving(port: int) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    return bool(answer.status == SERVING)


def ended(process: Process, seconds: float = 60) -> tuple[int, str]:
    _, err = process.communicate(timeout=seconds)
    return process.returncode, err


def hide_uvloop(shop: Shell) -> None:
    """As where it is not installed; all other tests with processes of their own have it."""
    hidden = shop.directory / "hidden"
    hidden.mkdir()
    (hidden / "uvloop.py").write_text("raise ImportError('hidden')\n")
    shop.environ["PYTHONPATH"] = os.pathsep.join([str(hidden), *filter(None, [shop.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_run_through_a_server(shop: Shell, database: str, request: pytest.FixtureRequest) -> None:
    arguments = ["--url", request.getfixturevalue("fresh_database")] if database == "postgres" else []
    if database == "sqlite":
        hide_uvloop(shop)
    server = shop.spawn("server", "--port", "0", "--log-format", "json", *arguments)
    url = f"grpc://127.0.0.1:{port_of(server)}"
    (shop.directory / "go-1").touch()
    worker = shop.spawn("worker", "shop.py", KAGZI_URL=url)
    read_until(worker, "is up")
    done = shop("start", "checkout", "-i", '["1", 5]', "--id", "one", "--wait", "--timeout", "60", KAGZI_URL=url)
    assert (done.code, json.loads(done.out or "null")) == (0, {"paid": "1:5", "sent": "shipped"}), done
    shown = shop.afresh("runs", "show", "one", "--json", "--url", url)
    assert shown.json["status"] == "COMPLETED", shown
    doctor = shop("doctor", "--json", "--url", url)
    assert doctor.code == 0, doctor
    assert [(part["name"], part["status"]) for part in doctor.json["components"]] == [
        ("database", "healthy"),
        ("migrations", "healthy"),
        ("coordinator", "healthy"),
        ("workers", "healthy"),
    ]
    assert doctor.json["components"][3]["message"] == "1 online"
    quick = shop("doctor", "--quick", "--json", "--url", url)
    assert [part["name"] for part in quick.json["components"]] == ["database", "migrations"]
    assert shop("start", "checkout", "--id", "one", "-i", '["2", 5]', KAGZI_URL=url).code == 5
    assert shop("runs", "show", "two", KAGZI_URL=url).code == 3
    worker.send_signal(signal.SIGTERM)
    assert ended(worker)[0] == 0
    server.send_signal(signal.SIGTERM)
    code, err = ended(server)
    assert code == 0, err
    assert all(json.loads(line)["logger"].startswith("kagzi") for line in err.splitlines())
    gone = shop("doctor", "--url", url)
    assert gone.code == 4, gone


def test_a_server_that_is_told_twice_ends_at_once(shop: Shell) -> None:
    server = shop.spawn("server", "--port", "0", "--grace", "60s")
    url = f"grpc://127.0.0.1:{port_of(server)}"
    waiting = shop.spawn("start", "checkout", "-i", '["2", 5]', "--wait", KAGZI_URL=url)
    read_until(waiting, "is stored")
    server.send_signal(signal.SIGTERM)
    read_until(server, "stopping")
    server.send_signal(signal.SIGINT)
    assert ended(server, 40)[0] == 0  # not only after its grace time


def test_it_ends_in_order_as_the_first_process_of_a_container(shop: Shell) -> None:
    """PID 1 has no default handlers: a signal it did not ask for is ignored."""
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "--pid", "--fork", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this machine does not let us make a PID namespace")
    command = [unshare, "--pid", "--fork", "--kill-child", sys.executable, "-m", "kagzi", "server", "--port", "0"]
    outer = shop.start(command)
    port_of(outer)
    (child,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    assert ended(outer)[0] == 0


def test_a_server_without_its_database(shop: Shell) -> None:
    done = shop("server", "--port", "0", KAGZI_DB_URL="postgresql://nobody:hunter2@127.0.0.1:1/nothing")
    assert done.code == 4, done
    assert "cannot reach PostgreSQL" in done.err
    assert "hunter2" not in done.err


def test_without_keys_http_answers_only_a_server_that_is_said_to_be_local(shop: Shell) -> None:
    for flags, alone, through_proxy in ((), 403, 403), (("--local",), 200, 403):
        server = shop.spawn("server", "--port", "0", *flags)
        told = read_until(server, "is ready")
        assert ("nobody is answered yet" in told) is (not flags)
        http = int(re.findall(r"HTTP on 127\.0\.0\.1:(\d+)", told)[0])
        for path, status in (("/livez", 200), ("/api/v1/runs", alone), ("/metrics", alone)):
            assert answer(http, path)[0] == status, (flags, path)
        with socket.create_connection(("127.0.0.1", http)) as nginx:  # as it speaks by default
            nginx.sendall(b"GET /api/v1/runs HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % http)
            assert int(nginx.makefile("rb").readline().split()[1]) == through_proxy
        server.send_signal(signal.SIGTERM)
        assert ended(server)[0] == 0
    public = shop("server", "--local", "--port", "0", KAGZI_PUBLIC_URL="https://kagzi.example")
    assert (public.code, "KAGZI_PUBLIC_URL" in public.err) == (2, True)


@pytest.mark.postgres
@pytest.mark.slow
def test_health_tells_the_truth(shop: Shell, postgres_server: PostgresServer) -> None:
    server = shop.spawn("server", "--local", "--port", "0", KAGZI_DB_URL=postgres_server.url)
    port, http = ports_of(server)
    assert is_serving(port)
    assert answer(http, "/readyz")[0] == 200
    postgres_server.stop("immediate")
    assert within(6, lambda: not is_serving(port))
    assert within(6, lambda: answer(http, "/readyz")[0] == 503)
    # Until the keys that were read last are too old, and the pauses between attempts to read them have grown.
    assert within(20, lambda: answer(http, "/api/v1/health")[0] in (503, 504))
    assert server.poll() is None
    assert answer(http, "/livez")[0] == 200
    for path in ("/readyz", "/api/v1/runs", "/api/v1/health"):
        status, text = answer(http, path)
        assert status in (503, 504), text
        assert "postgres" not in text.lower()
        assert str(urlsplit(postgres_server.url).port) not in text
    done = shop("doctor", "--quick", "--json", "--url", f"grpc://127.0.0.1:{port}")
    assert done.code == 4, done
    # By now it is not known which keys there are, so nobody is told more.
    assert done.json["components"] == [{"name": "database", "status": "unhealthy", "message": UNEXPLAINED}]
    postgres_server.start()
    assert within(6, lambda: is_serving(port))
    assert within(6, lambda: answer(http, "/readyz")[0] == 200)
    assert answer(http, "/api/v1/runs")[0] == 200
    server.send_signal(signal.SIGTERM)
    assert ended(server)[0] == 0


@pytest.mark.postgres
def test_five_servers_at_once_on_an_empty_database(shop: Shell, fresh_database: str) -> None:
    servers = [shop.spawn("server", "--port", "0", KAGZI_DB_URL=fresh_database) for _ in range(5)]
    ports = [port_of(server) for server in servers]
    assert all(is_serving(port) for port in ports)
    (shop.directory / "go-3").touch()
    worker = shop.spawn("worker", "shop.py", KAGZI_URL=f"grpc://127.0.0.1:{ports[0]}")
    read_until(worker, "is up")
    # Started at one server, executed through another.
    done = shop("start", "checkout", "-i", '["3", 1]', "--wait", KAGZI_URL=f"grpc://127.0.0.1:{ports[4]}")
    assert done.code == 0, done
    for process in (worker, *servers):
        process.send_signal(signal.SIGTERM)
    assert [ended(process)[0] for process in (worker, *servers)] == [0] * 6


def within(seconds: float, look: object) -> bool:
    """Whether it happens in time; promised are five seconds."""
    assert callable(look)
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_why_it_cannot_listen_is_said_in_one_line(shop: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = shop("server", "--port", str(port))
    reason = (
        f"({os.strerror(errno.EADDRINUSE)}); is another server running there, or is the address not of this machine?"
    )
    assert (busy.code, busy.err) == (4, f"Error: cannot listen on 127.0.0.1:{port} {reason}\n")
    foreign = shop("server", "--host", "192.0.2.1", "--port", "0", "--insecure")
    assert foreign.code == 4
    assert foreign.err.startswith(f"Error: cannot listen on 192.0.2.1:0 ({os.strerror(errno.EADDRNOTAVAIL)})"), foreign


def test_a_client_with_the_wrong_scheme_is_told_in_one_line(shop: Shell) -> None:
    server = shop.spawn("server", "--port", "0")
    port = port_of(server)
    told = shop("runs", "list", "--url", f"grpcs://127.0.0.1:{port}")
    assert (told.code, told.err) == (
        2,
        f"Error: the server at 127.0.0.1:{port} does not speak TLS; use grpc://127.0.0.1:{port}\n",
    )


def test_a_worker_says_when_its_server_is_away_and_when_it_is_back(shop: Shell) -> None:
    server = shop.spawn("server", "--port", "0")
    port = port_of(server)
    url = f"grpc://127.0.0.1:{port}"
    worker = shop.spawn("worker", "shop.py", KAGZI_URL=url, KAGZI_WORKER_POLL_TIMEOUT_SECS="1")
    read_until(worker, "is up")
    server.kill()
    server.wait()
    read_until(worker, "polling failed (1 in a row)")
    again = shop.spawn("server", "--port", str(port))
    port_of(again)
    assert '"worker_id"' in read_until(worker, "polling works again after")


@pytest.mark.parametrize("command", [("server",), ("migrate",), ("keys", "list"), ("audit",)])
def test_a_server_is_not_a_database(shop: Shell, command: tuple[str, ...]) -> None:
    for done in (
        shop(*command, "--url", "grpc://127.0.0.1:1"),
        shop(*command, KAGZI_URL="grpc://127.0.0.1:1"),
    ):
        assert done.code == 2, done
        assert "grpc://127.0.0.1:1 is a server; name the database by --url or KAGZI_DB_URL" in done.err
