"""The example projects run as their first lines say: real servers, several processes, killed workers."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def program(project: str, url: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a project; ended in order when the block is left, which must succeed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KAGZI_")}
    environment |= {"KAGZI_URL": url, "SHOP_PASSWORD": "secret"}
    process = subprocess.Popen([sys.executable, "-m", *arguments], cwd=EXAMPLES / project, env=environment)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def until_up(client: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            client.get("/")
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.05)


def test_fastapi(tmp_path: Path) -> None:
    port = free_port()
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    with (
        program("fastapi_shop", url, "uvicorn", "shop:api", "--port", str(port), "--workers", "2"),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        until_up(client)
        runs = {client.post("/orders/42").json()["run"] for _ in range(4)}  # whichever process answers
        assert len(runs) == 1
        assert client.get("/orders/42").json() == {"order": "42", "payment": "payment-42"}
        assert client.get("/kagzi/runs").status_code == 401
        assert client.get("/kagzi/runs", auth=("ada", "wrong")).status_code == 401
        page = client.get("/kagzi/runs", headers={"accept": "text/html"}, auth=("ada", "secret")).text
        assert re.search(r'href="/kagzi/runs/[0-9a-f-]+"', page)


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
def test_flask(tmp_path: Path, preload: tuple[str, ...]) -> None:
    port = free_port()
    url = f"sqlite:///{tmp_path / 'kagzi.db'}"
    with ExitStack() as stack:
        bound = ("--bind", f"127.0.0.1:{port}", "--workers", "2", "--worker-tmp-dir", str(tmp_path))
        stack.enter_context(program("flask_shop", url, "gunicorn", *bound, *preload, "shop:web"))
        stack.enter_context(program("flask_shop", url, "kagzi", "worker", "shop.py"))
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE))
        until_up(client)
        for order in range(6):
            assert client.post(f"/orders/{order}").status_code == 202
            assert client.get(f"/orders/{order}").json() == {"payment": f"payment-{order}"}
        assert client.get("/orders/unknown").status_code == 404
