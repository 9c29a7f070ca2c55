"""The reference pages that are made from code: docs/settings.md.

    python -m kagzi.cli.reference        # writes them, in the root of the repository

A test compares them with what this module makes.
"""

from __future__ import annotations

from pathlib import Path

from kagzi.settings import Settings, accepted, default, description, is_secret, key, show, variable

_SETTINGS = """\
# Settings

<!-- Made from the table in src/kagzi/settings.py: python -m kagzi.cli.reference -->

Kagzi needs no settings. Each of these can be given, and whoever comes first decides:

1. as a flag of a command, where it has one (`kagzi server --port 50052`);
2. as an environment variable;
3. in `kagzi.toml`, or under `[tool.kagzi]` in `pyproject.toml`: the nearest one, from the directory you are in up to
   that of the project;
4. else it has its default.

What an app is given in code, as in `Kagzi("sqlite:///orders.db", lease="10s")`, is not overruled by 2 to 4.
`kagzi doctor` shows every value and where it came from.

```toml
# kagzi.toml
url = "postgresql://shop@db/shop"
app = "shop:app"

[worker]
visibility_timeout_secs = 10
```

| variable | in the file | default | accepted |
|---|---|---|---|
{rows}

What they do:

{descriptions}

**Secrets** may be in a file whose path is in the variable that ends in `_FILE`, as container platforms mount them:
{secrets}. Passwords are masked wherever settings are shown.

**What is not known is refused**: a variable that begins with `KAGZI_` and is not in the table, or such a key in the
file, stops the program with a message that names the nearest one there is. An empty variable counts as not set.
`KAGZI_TEST_*` belongs to the tests, and what Kubernetes sets for a Service named `kagzi…`, as
`KAGZI_SERVER_PORT=tcp://…`, is ignored. `KAGZI_SCHEDULER_*` and `KAGZI_WATCHDOG_*` are retired names of
`KAGZI_COORDINATOR_*`.
"""


def settings_page() -> str:
    fields = Settings.__struct_fields__
    return _SETTINGS.format(
        rows="\n".join(
            f"| `{variable(field)}` | `{key(field)}` | {_default(field)} | {accepted(field)} |" for field in fields
        ),
        descriptions="\n".join(f"* `{variable(field)}`: {description(field)}" for field in fields),
        secrets=", ".join(f"`{variable(field)}_FILE`" for field in fields if is_secret(field)),
    )


def _default(field: str) -> str:
    value = default(field)
    return "" if value is None else f"`{show(field, value)}`"


PAGES = {"settings.md": settings_page}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path("docs") / name).write_text(page(), encoding="utf-8")
