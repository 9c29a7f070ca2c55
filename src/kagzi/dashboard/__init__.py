"""The dashboard: pages for people on the HTTP port.

Every page is whole HTML with links and forms, made here from what the engine answers; scripts only make it livelier.
Whatever comes from a run is text: templates escape, and no script or style is ever part of a page.
"""

from __future__ import annotations

from kagzi.dashboard.routes import PAGES
from kagzi.dashboard.shell import trouble
from kagzi.http.call import Decode
from kagzi.http.pages import Pages

__all__ = ["PAGES", "make_pages"]


def make_pages(*, read_only: bool, session_seconds: float, decode: Decode | None = None) -> Pages:
    """`decode`: payloads are shown as the codec of their app reads them, to everybody who may see the page."""
    return Pages(routes=PAGES, trouble=trouble, read_only=read_only, session_seconds=session_seconds, decode=decode)
