"""A step that runs in a process, of an app with a codec."""

from __future__ import annotations

import kagzi
from kagzi import Kagzi
from kagzi.codecs import Encrypt

app = Kagzi("memory://", codec=Encrypt({"1": bytes(32)}, current="1"))


@app.step(executor="process")
def render(text: str) -> str:
    kagzi.progress(0.5, text + " in a process")
    return text + " rendered"


@app.workflow
async def book(text: str) -> str:
    return await render(text)
