"""The dashboard: pages for people on the HTTP port.

Every page is whole HTML with links and forms, made here from what the engine answers; scripts only make it livelier.
Whatever comes from a run is text: templates escape, and no script or style is ever part of a page.
"""

from __future__ import annotations

from kagzi.dashboard.routes import PAGES
from kagzi.dashboard.shell import trouble
from kagzi.http.call import PayloadCodec
from kagzi.http.pages import Pages

__all__ = ["PAGES", "make_pages"]


def make_pages(*, read_only: bool, session_seconds: float, codec: PayloadCodec | None = None) -> Pages:
    """`codec`: payloads are shown as this one of their app reads them, to everybody who may see the page; what forms
    write is encoded by it."""
    return Pages(routes=PAGES, trouble=trouble, read_only=read_only, session_seconds=session_seconds, codec=codec)
