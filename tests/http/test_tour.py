"""The tour in docs/http.md, taken: every curl line is sent, and gets what the page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kagzi.http.problems import _STATUSES
from kagzi.http.routes import ROUTES
from tests.http.support import Client

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text()
STOPS = re.findall(r"```sh\n(curl [^\n]*)\n```\n\n```json\n(.*?)\n```", PAGE, re.DOTALL)


def request_of(line: str) -> tuple[str, str, dict[str, Any]]:
    """What curl would send."""
    method, url, headers, body = "GET", "", {}, None
    words = iter(shlex.split(line)[1:])
    for word in words:
        if word == "-s":
            continue
        if word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            method, body = "POST", next(words)
        else:
            url = word
    parts = urlsplit(f"http://{url}")
    assert parts.netloc == "localhost:8420"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return method, path, {"headers": headers, "content": body}


def as_told(said: Any, got: Any) -> bool:
    """Whether an answer has what the page shows of it."""
    if said == "…":
        return got is not None
    if isinstance(said, dict):
        return isinstance(got, dict) and all(name in got and as_told(value, got[name]) for name, value in said.items())
    if isinstance(said, list):
        return isinstance(got, list) and len(said) == len(got) and all(map(as_told, said, got))
    return bool(said == got)


async def test_the_tour(quick: Client) -> None:
    assert len(STOPS) >= 9
    run_id = ""
    for line, expected in STOPS:
        method, path, more = request_of(line.replace("RUN_ID", run_id))
        response = await quick.send(method, path, **more)
        assert as_told(json.loads(expected), response.json()), f"{line}\n{response.text}"
        if not run_id:
            run_id = response.json()["run_id"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.action)
def test_every_route_is_on_the_page(route: Any) -> None:
    shown = route.path.replace("{run_id}", "RUN_ID")
    if "RUN_ID/" in shown:
        assert f"`{shown.rpartition('/')[2]}`" in PAGE or shown in PAGE
    elif shown.endswith(("/drain", "/enable", "/disable", "/pause", "/resume")) or "{schedule_id}/" in shown:
        assert f"…/{shown.rpartition('/')[2]}" in PAGE
    else:
        assert shown in PAGE


def test_every_code_is_on_the_page() -> None:
    for cls, status, _ in _STATUSES:
        if cls.code != "LEASE_LOST":
            assert re.search(rf"^\|[^|]*{status}[^|]*\|[^|]*`{cls.code}`", PAGE, re.MULTILINE), cls
    sources = "".join(path.read_text() for path in Path("src/kagzi/http").glob("*.py"))
    for status, code in re.findall(r'Refused\(\s*(\d+),\s*"(\w+)"', sources):
        assert re.search(rf"^\|[^|]*{status}[^|]*\|[^|]*`{code}`", PAGE, re.MULTILINE), code
