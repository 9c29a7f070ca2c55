"""Tags: words that callers put on a run, to find it by. `batch=7` is the tag `batch` with the value `7`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kagzi.core.limits import check_name
from kagzi.errors import InvalidRequest

MOST_TAGS: Final = 10  # of one run
TAG_CHARACTERS: Final = 100  # of a name, and of a value


def check_tags(tags: object, field: str = "tags") -> dict[str, str]:
    """Returns the tags of a run, or refuses them in words that name the field and the tag."""
    if not isinstance(tags, Mapping):
        raise InvalidRequest(f'{field} must be names with values, for example {{"batch": "7"}}, not {tags!r:.60}')
    if len(tags) > MOST_TAGS:
        raise InvalidRequest(f"{field} has {len(tags):,} tags; a run has at most {MOST_TAGS}")
    for name, value in tags.items():
        check_name(name, f"the name of a tag in {field}", TAG_CHARACTERS)
        if "=" in name:
            raise InvalidRequest(f"{field}: the name {name!r} contains '=', which stands between name and value")
        check_name(value, f"{field}: the value of {name!r}", TAG_CHARACTERS)
    return dict(tags)


def read_tag(text: object, field: str = "tag") -> tuple[str, str]:
    """Returns the name and the value of a tag that is written as `batch=7`."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{field} must be text such as batch=7, not {type(text).__name__}")
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"{field} must be a name and a value such as batch=7, not {text!r:.60}")
    check_tags({name: value}, field)
    return name, value


def tag_text(name: str, value: str) -> str:
    """Returns a tag as people write it, and as it is looked up."""
    return f"{name}={value}"


def encode_tags(tags: Mapping[str, str]) -> str | None:
    """Returns tags as they are kept, in the order of their names; None if there are none."""
    return msgspec.json.encode(tags, order="deterministic").decode() if tags else None


def decode_tags(text: str | None) -> dict[str, str]:
    """Returns the tags that are kept in this text."""
    return msgspec.json.decode(text, type=dict[str, str]) if text else {}
