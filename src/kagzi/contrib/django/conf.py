"""What `settings.KAGZI` says, and where Django's database is as a URL of Kagzi's."""

from __future__ import annotations

import difflib
import os
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.utils import ConnectionDoesNotExist
from msgspec import Struct

from kagzi.core.limits import check_name
from kagzi.errors import InvalidRequest

MEMORY: Final = "memory://"
# Of psycopg's options in DATABASES, those that say how to connect and that the app's own driver knows, too.
_PASSED_ON: Final = ("passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "target_session_attrs")


class Conf(Struct, frozen=True, kw_only=True):
    """`settings.KAGZI`; a field is a key of it."""

    app: str | None = None  # "shop.workflows:app"
    url: str | None = None
    namespace: str | None = None
    queues: tuple[str, ...] | None = None  # what `kagzi_worker` serves unless it is told otherwise
    database: str = DEFAULT_DB_ALIAS  # the alias of the database whose transactions runs are started in
    migrate: bool = True  # whether `manage.py migrate` makes Kagzi's tables, too


class Problem(Struct, frozen=True):
    """Something wrong with the settings, with the number of its check."""

    number: int
    message: str
    hint: str = ""


def read() -> tuple[Conf, list[Problem]]:
    """Returns what can be used of the settings, and what is wrong with the rest."""
    given = getattr(settings, "KAGZI", {})
    if not isinstance(given, dict):
        return Conf(), [
            Problem(1, f"KAGZI must be a dict, not {given!r:.100}", 'KAGZI = {"app": "shop.workflows:app"}')
        ]
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in Conf.__struct_fields__:
            problems.append(_unknown(key))
            continue
        try:
            values[key] = _checked(key, value)
        except InvalidRequest as error:
            problems.append(Problem(2, f"KAGZI[{key!r}]: {error}"))
    if "database" in values and values["database"] not in settings.DATABASES:
        known = ", ".join(map(repr, settings.DATABASES))
        problems.append(Problem(2, f"KAGZI['database']: there is no {values.pop('database')!r} in DATABASES", known))
    return Conf(**values), problems


def _unknown(key: object) -> Problem:
    near = difflib.get_close_matches(str(key), Conf.__struct_fields__, 1)
    keys = ", ".join(Conf.__struct_fields__)
    return Problem(1, f"KAGZI has no {key!r}", f"Did you mean {near[0]!r}?" if near else f"There are {keys}.")


def _checked(key: str, value: object) -> Any:
    if key == "migrate":
        if not isinstance(value, bool):
            raise InvalidRequest(f"it must be True or False, not {value!r:.100}")
        return value
    if value is None:
        return DEFAULT_DB_ALIAS if key == "database" else None
    if key == "queues":
        if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)) or not value:
            raise InvalidRequest(f'it must be a list of names, for example ["default"], not {value!r:.100}')
        return tuple([check_name(queue, "queue") for queue in value])
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"it must be text, not {value!r:.100}")
    if key == "url" and "://" not in value:
        raise InvalidRequest(
            "it must be a URL such as postgresql://user@host/shop, grpc://host:50051, sqlite:////file.db"
        )
    return check_name(value, "namespace") if key == "namespace" else value


def database_url(alias: str) -> str:
    """Returns where Django's database is, as it is now: the test runner changes its name.

    A database in memory, which tests have on SQLite, cannot be shared: runs live in memory, too, beside it.
    """
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist as error:
        raise ImproperlyConfigured(str(error)) from None
    said = connection.settings_dict
    if connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            return MEMORY
        if str(said["NAME"]).startswith("file:"):
            raise ImproperlyConfigured(_say_url(alias, "names a file by a URI"))
        return "sqlite:///" + quote(os.path.abspath(said["NAME"]))
    if connection.vendor == "postgresql":
        return _postgres_url(alias, said)
    raise ImproperlyConfigured(_say_url(alias, f"is {connection.display_name}, in which Kagzi cannot keep runs"))


def _postgres_url(alias: str, said: dict[str, Any]) -> str:
    options = said.get("OPTIONS") or {}
    if "service" in options or not said.get("NAME"):
        raise ImproperlyConfigured(_say_url(alias, "leaves its name or service to libpq"))
    user = quote(said.get("USER") or "", safe="")
    if password := said.get("PASSWORD"):
        user += ":" + quote(str(password), safe="")
    host, port = str(said.get("HOST") or ""), str(said.get("PORT") or "")
    query = {name: str(options[name]) for name in _PASSED_ON if options.get(name)}
    if host.startswith("/"):  # the directory of a socket
        query = {"host": host, **({"port": port} if port else {}), **query}
        host = port = ""
    elif ":" in host:
        host = f"[{host}]"
    place = (f"{user}@" if user else "") + host + (f":{port}" if port else "")
    return f"postgresql://{place}/{quote(said['NAME'], safe='')}" + (f"?{urlencode(query)}" if query else "")


def _say_url(alias: str, why: str) -> str:
    return f'DATABASES[{alias!r}] {why}; say where: KAGZI = {{"url": "postgresql://user@host/shop"}}'
