"""One field of the table: its names, what is accepted, how a value is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from msgspec import Meta

from kagzi.core.key import mask_keys
from kagzi.settings.table import GROUPS, Settings

PREFIX: Final = "KAGZI_"
MASK: Final = "***"


def variable(field: str) -> str:
    return PREFIX + field.upper()


def key(field: str) -> str:
    """Returns where a field stands in a file: `server.port`, or `url` without a table."""
    group, _, rest = field.partition("_")
    return f"{group}.{rest}" if group in GROUPS else field


def default(field: str) -> object:
    return Settings.__struct_defaults__[Settings.__struct_fields__.index(field)]


def description(field: str) -> str:
    return next(meta.description for meta in reversed(_metas(field)) if meta.description is not None)


def is_secret(field: str) -> bool:
    return _secret(field) is not None


def _secret(field: str) -> str | None:
    """Returns what kind of secret a field holds: `url`, of which the password is one, or `text`, which is one as a
    whole."""
    return next((meta.extra["secret"] for meta in _metas(field) if meta.extra and "secret" in meta.extra), None)


def accepted(field: str) -> str:
    """Returns what may be given, in words."""
    kind = _kind(field)
    if get_origin(kind) is Literal:
        *most, last = get_args(kind)
        return f"{', '.join(most)} or {last}"
    bounds = _metas(field)
    if said := next((meta.extra["accepted"] for meta in bounds if meta.extra and "accepted" in meta.extra), None):
        return str(said)
    least = next((meta.ge for meta in bounds if meta.ge is not None), None)
    most_ = next((meta.le for meta in bounds if meta.le is not None), None)
    longest = next((meta.max_length for meta in bounds if meta.max_length is not None), None)
    if kind is int:
        return f"a whole number from {least:,} to {most_:,}"
    if kind is float:
        return f"a number of seconds from {least:g} to {most_:,.0f}"
    return (
        "a URL such as sqlite:///orders.db or postgresql://user@host/orders"
        if _secret(field) == "url"
        else f"text of 1 to {longest} characters"
    )


def show(field: str, value: object) -> str:
    """Returns a value as people may see it."""
    if value is None:
        return "-"
    if kind := _secret(field):
        return mask_url(str(value)) if kind == "url" else MASK
    return f"{value:g}" if isinstance(value, float) else str(value)


def hint(field: str) -> Any:
    return _HINTS[field]


_HINTS: Final = get_type_hints(Settings, include_extras=True)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yields every part of an annotation, the innermost last."""
    if get_origin(annotation) is Annotated:
        inner, *metas = get_args(annotation)
        yield from metas
        yield from _parts(inner)
    elif get_origin(annotation) in (Union, UnionType):
        for option in get_args(annotation):
            yield from _parts(option)
    else:
        yield annotation


def _metas(field: str) -> list[Meta]:
    return [part for part in _parts(hint(field)) if isinstance(part, Meta)]


def _kind(field: str) -> Any:
    return next(part for part in _parts(hint(field)) if not isinstance(part, Meta) and part is not type(None))


def mask_url(url: str) -> str:
    """Returns the URL without what must not be seen: the password, wherever it stands, and API keys."""
    url = mask_keys(url)
    try:
        parts = urlsplit(url)
        user, colon, _ = parts.netloc.rpartition("@")[0].partition(":")
    except ValueError:
        return MASK
    if not parts.scheme or "://" not in url:
        return MASK
    if ":" in parts.netloc and "@" not in parts.netloc and "@" in url:
        # A password with `/`, `?` or `#` in it that was not written as %XX: where it ends is anybody's guess.
        return f"{parts.scheme}://{MASK}"
    login = f"{user}:{MASK}@" if colon else f"{user}@" if user else ""
    query = re.sub(r"(?i)\b([^=&]*(?:password|secret|token|key)[^=&]*)=[^&]*", rf"\1={MASK}", parts.query)
    # Not urlunsplit, which leaves out slashes where there is no host.
    shown = f"{parts.scheme}://{login}{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{shown}?{query}" if query else shown
