"""A server that may open no more files."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.faults.processes import ServerProcess, until


async def test_out_of_file_descriptors_is_logged_and_survived(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, f"sqlite:///{tmp_path}/runs.db", lease=30)
    try:
        ports = [urlsplit(await server.url()), urlsplit(server.http_url())]
        most = len(os.listdir(f"/proc/{server.process.pid}/fd")) + 20
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, most))
        for times, port in enumerate(ports, start=1):
            with contextlib.ExitStack() as stack:
                for _ in range(30):
                    stack.enter_context(socket.create_connection((port.hostname or "", port.port or 0), 5))
                await until(lambda times=times: server.log.count("out of file descriptors") == times, "it is logged")
            await until(lambda times=times: server.log.count("there are file descriptors again") == times, "it is over")
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"{server.http_url()}/readyz", timeout=20)).status_code == 200
        assert "ulimit -n" in server.log
        assert server.process.poll() is None
    finally:
        server.close()
