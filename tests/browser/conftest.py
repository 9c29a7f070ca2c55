"""A real browser before a real server. Debian's Chromium is enough: `make browser` installs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from kagzi import Kagzi
from kagzi.engine.local import LocalEngine
from kagzi.http.port import HttpPort
from tests.browser.office import Office
from tests.dashboard.support import dashboard
from tests.http.support import engine_on

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


expect.set_options(timeout=30_000)  # cores may be busy with other tests


def find_chromium() -> str | None:
    given = os.environ.get("KAGZI_CHROMIUM")
    return given or next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)


class Site:
    """A server with its dashboard, and the app whose worker the test starts when it wants one."""

    def __init__(self, url: str, engine: LocalEngine, port: HttpPort, browser: Browser) -> None:
        self.engine = engine
        self.port = port
        self.office = Office(url)
        self._browser = browser
        self.complaints: list[str] = []  # of the console: scripts that fail, and what the policy has refused

    @property
    def app(self) -> Kagzi:
        return self.office.app

    @asynccontextmanager
    async def visitor(self, **options: Any) -> AsyncIterator[Page]:
        context = await self._browser.new_context(base_url=self.port.url, **options)
        context.set_default_timeout(30_000)
        page = await context.new_page()
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        try:
            yield page
        finally:
            await context.close()

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One for the tests of a module: each visitor has a profile of its own, and a browser takes seconds to start."""
    path = find_chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium, and CI has to try the dashboard in one (make browser)")
        pytest.skip("there is no Chromium; make browser installs it, KAGZI_CHROMIUM names one")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def site(request: pytest.FixtureRequest, sqlite_file: str, browser: Browser) -> AsyncIterator[Site]:
    """A parameter of the test is settings of its engine."""
    url = f"sqlite:///{sqlite_file}"
    async with engine_on(url, **getattr(request, "param", {})) as engine, dashboard(engine) as port:
        made = Site(url, engine, port, browser)
        yield made
    assert made.complaints == []
