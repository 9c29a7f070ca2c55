"""Every setting of Kagzi, in one table, and how it gets its value.

`Settings` is the table: a field `server_port` is the environment variable KAGZI_SERVER_PORT and the key `port` under
`[server]` in `kagzi.toml` (or `[tool.kagzi.server]` in pyproject.toml). Whoever comes first decides:

    flags of the command  >  environment  >  kagzi.toml, else [tool.kagzi]  >  the default in the table

`load()` reads them and refuses what it does not know, because a misspelt setting that is silently ignored is found out
in production. Every value remembers where it came from (`kagzi doctor` shows it); secrets may be given as the path of a
file in a variable that ends in _FILE, and are masked wherever they are shown. A file of another user is not read: who
works in a directory that others can write to would run their app, and show them keys. docs/settings.md is made from
the table (`python -m kagzi.cli.reference`).
"""

from kagzi.settings.fields import accepted, default, description, is_secret, key, mask_url, show, variable
from kagzi.settings.loading import DEFAULT, Loaded, load
from kagzi.settings.sources import DATA_DIRECTORY, FILE_NAME, Flag, project_directory, read_secret
from kagzi.settings.table import Settings

__all__ = [
    "DATA_DIRECTORY",
    "DEFAULT",
    "FILE_NAME",
    "Flag",
    "Loaded",
    "Settings",
    "accepted",
    "default",
    "description",
    "is_secret",
    "key",
    "load",
    "mask_url",
    "project_directory",
    "read_secret",
    "show",
    "variable",
]
