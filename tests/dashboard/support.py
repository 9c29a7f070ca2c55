"""Pages as somebody without scripts uses them: links are followed, forms are sent as they stand on the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx

from kagzi.core.key import Role
from kagzi.dashboard import make_pages
from kagzi.engine.local import LocalEngine
from kagzi.http.call import PayloadCodec
from kagzi.http.port import HttpPort
from tests.http.support import serving


class Form:
    def __init__(self, action: str, method: str) -> None:
        self.action = action
        self.method = method
        self.fields: dict[str, Any] = {}

    def add(self, name: str, value: str, box: bool = False) -> None:
        """Fields of one name are a list; boxes are not ticked."""
        if box:
            return
        known = self.fields.get(name)
        self.fields[name] = value if known is None else [*([known] if isinstance(known, str) else known), value]


class Page(HTMLParser):
    """What a page shows: its text, its links, its forms, and every tag and attribute for those who look for scripts."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.status = response.status_code
        self.headers = response.headers
        self.html = response.text
        self.text = ""
        self.links: dict[str, str] = {}
        self.forms: list[Form] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._link: str | None = None
        self._words: list[str] = []
        self._area: str | None = None
        self._choice: str | None = None
        self.feed(response.text)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag == "a":
            self._link, self._words = given.get("href", ""), []
        elif tag == "form":
            self.forms.append(Form(given.get("action", ""), given.get("method", "get")))
        elif tag in ("input", "button") and self.forms and "name" in given and given.get("formmethod") != "get":
            self.forms[-1].add(given["name"], given.get("value", ""), given.get("type") == "checkbox")
        elif tag == "select" and self.forms and "name" in given:
            self._choice = given["name"]
        elif tag == "option" and self.forms and self._choice is not None:
            # The first one unless another is chosen.
            if "selected" in given or self._choice not in self.forms[-1].fields:
                self.forms[-1].fields[self._choice] = given.get("value", "")
        elif tag == "textarea" and self.forms:
            self._area = given["name"]
            self.forms[-1].fields[self._area] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._link is not None:
            self.links[" ".join("".join(self._words).split())] = self._link
            self._link = None
        elif tag == "textarea":
            self._area = None
        elif tag == "select":
            self._choice = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._link is not None:
            self._words.append(data)
        if self._area is not None:
            self.forms[-1].fields[self._area] += data

    def form(self, action: str) -> Form:
        """The form whose address ends like this."""
        (found,) = [form for form in self.forms if form.action.partition("?")[0].endswith(action)]
        return found


class Browser:
    """Keeps cookies, follows redirects, and checks the headers of every page."""

    def __init__(self, url: str) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, follow_redirects=True)

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def open(self, path: str, *, code: int = 200, **query: str) -> Page:
        return self._seen(await self.http.get(path, params=query or None, headers={"accept": "text/html"}), code)

    async def send(self, form: Form, *, code: int = 200, **fields: str) -> Page:
        answer = await self.http.post(
            form.action, data=form.fields | fields, headers={"origin": str(self.http.base_url).rstrip("/")}
        )
        return self._seen(answer, code)

    async def log_in(self, key: str) -> Page:
        page = await self.open("/login")
        return await self.send(page.form("/login"), key=key)

    def _seen(self, response: httpx.Response, status: int) -> Page:
        assert response.status_code == status, response.text
        policy = response.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["cache-control"] == "no-store"
        page = Page(response)
        for tag, attributes in page.tags:
            assert "style" not in attributes, (tag, attributes)
            assert not any(name.startswith("on") for name in attributes), (tag, attributes)
            if tag == "script":
                assert attributes["src"].startswith("/"), attributes
        return page


@asynccontextmanager
async def dashboard(
    engine: LocalEngine, *, read_only: bool = False, codec: PayloadCodec | None = None, **options: Any
) -> AsyncIterator[HttpPort]:
    pages = make_pages(read_only=read_only, session_seconds=3600.0, codec=codec)
    async with serving(engine, pages=pages, **options) as port:
        yield port


async def new_key(engine: LocalEngine, port: HttpPort, role: Role, namespace: str | None = None) -> str:
    made = await engine.keys.create(name="test", role=role, namespace=namespace, actor="test")
    await port._gate._read()  # rather than wait a second
    return made.text
