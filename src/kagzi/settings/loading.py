"""All settings with their sources, read and checked together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from kagzi.errors import InvalidRequest
from kagzi.settings.fields import accepted, hint, is_secret, key, show, variable
from kagzi.settings.sources import FILE_NAME, SHARED_FILE_NAME, Flag, from_environment, from_file, from_flags
from kagzi.settings.table import Settings

DEFAULT: Final = "default"  # the source of what nobody has set


class Loaded(Struct, frozen=True):
    """Settings, where each of them came from, and the file that was read."""

    settings: Settings
    sources: dict[str, str]
    file: Path | None = None

    def from_file(self, field: str) -> bool:
        """Says whether kagzi.toml or pyproject.toml decided, which rank below flags and the environment."""
        return self.sources[field] in (FILE_NAME, SHARED_FILE_NAME)

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """Variable, value fit for showing, source; in the order of the table."""
        for field in Settings.__struct_fields__:
            yield variable(field), show(field, getattr(self.settings, field)), self.sources[field]


def load(
    flags: Mapping[str, Flag] | None = None,
    environ: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Loaded:
    """Reads every setting; `flags` by field. Raises InvalidRequest with all that is wrong, and what is accepted."""
    problems: list[str] = []
    given = from_flags(flags or {})
    for field, (source, value) in from_environment(os.environ if environ is None else environ, problems).items():
        given.setdefault(field, (source, value))
    file, in_file = from_file(start or Path.cwd(), problems)
    for field, (source, value) in in_file.items():
        given.setdefault(field, (source, value))
    values: dict[str, Any] = {}
    for field, (source, value) in given.items():
        try:
            values[field] = _convert(field, value)
        except ValueError:
            problems.append(f"{_named(field, source)} must be {accepted(field)}{_not_this(field, value)}")
    if not problems:
        settings = Settings(**values)
        problems += _contradictions(settings)
        if not problems:
            return Loaded(
                settings,
                {field: given[field][0] if field in given else DEFAULT for field in Settings.__struct_fields__},
                file,
            )
    if len(problems) == 1:
        raise InvalidRequest(problems[0])
    raise InvalidRequest("\n".join([f"{len(problems)} settings cannot be used:", *(f"  {line}" for line in problems)]))


def _convert(field: str, value: object) -> object:
    # Text from the environment may stand for a number; a file says itself what is text.
    converted: object = msgspec.convert(value, hint(field), strict=not isinstance(value, str))
    if converted is None or converted != converted:
        raise ValueError("not a value")
    if isinstance(converted, str) and ("\0" in converted or not converted.strip()):
        raise ValueError("not text that can be used")
    return converted


def _named(field: str, source: str) -> str:
    if source.endswith(".toml"):
        return f"{key(field)} in {source}"
    return source


def _not_this(field: str, value: object) -> str:
    return "" if is_secret(field) else f", not {value!r:.100}"


def _contradictions(settings: Settings) -> Iterator[str]:
    heartbeat, lease = settings.worker_heartbeat_interval_secs, settings.worker_visibility_timeout_secs
    if heartbeat is not None and heartbeat >= lease:
        yield (
            f"KAGZI_WORKER_HEARTBEAT_INTERVAL_SECS ({heartbeat:g}) must be shorter than "
            f"KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS ({lease:g}); a third of it is a good choice"
        )
    if (settings.tls_cert is None) is not (settings.tls_key is None):
        yield "KAGZI_TLS_CERT and KAGZI_TLS_KEY belong together; one of them is missing"
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        yield "KAGZI_TLS_CLIENT_CA needs KAGZI_TLS_CERT and KAGZI_TLS_KEY: clients show certificates over TLS only"
    if settings.auth_key is not None and settings.auth_key_file is not None:
        yield "KAGZI_AUTH_KEY and KAGZI_AUTH_KEY_FILE are both set; one of them has to go"
    if settings.payload_warn_threshold_bytes > settings.payload_max_size_bytes:
        yield (
            f"KAGZI_PAYLOAD_WARN_THRESHOLD_BYTES ({settings.payload_warn_threshold_bytes:,}) must not be above "
            f"KAGZI_PAYLOAD_MAX_SIZE_BYTES ({settings.payload_max_size_bytes:,})"
        )
