"""Files that pages use: a style sheet and scripts of our own. Their address holds a digest, so they may be kept."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Annotated, Final

from msgspec import Meta, Struct

from kagzi.http.call import Asset, Call
from kagzi.http.problems import Refused

_MEDIA: Final = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_NAMES: Final = ("kagzi.css", "theme.js", "live.js", "keys.js", "steps.js", "icon.svg")


def _read() -> dict[str, bytes]:
    folder = files("kagzi.dashboard") / "static"
    return {name: (folder / name).read_bytes() for name in _NAMES}


_FILES: Final = _read()
_DIGESTS: Final = {name: hashlib.sha256(data).hexdigest()[:16] for name, data in _FILES.items()}


class AssetQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: Annotated[str, Meta(max_length=64)] | None = None


def asset_url(base: str, name: str) -> str:
    return f"{base}/static/{name}?v={_DIGESTS[name]}"


async def show_asset(call: Call[AssetQuery, None]) -> Asset:
    name = call.path["file"]
    if name not in _FILES:
        raise Refused(404, "NO_SUCH_FILE", "there is no such file")
    caching = _FOR_EVER if call.query.v == _DIGESTS[name] else "no-cache"
    return Asset(_FILES[name], _MEDIA[name.rpartition(".")[2]], caching)
