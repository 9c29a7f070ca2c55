"""The reference pages that are made from code: docs/settings.md and docs/cli.md.

    python -m kagzi.cli.reference        # writes them, in the root of the repository

A test compares them with what this module makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from kagzi.cli.main import cli
from kagzi.settings import Settings, accepted, default, description, is_secret, key, show, variable

_SETTINGS = """\
# Settings

<!-- Made from the table in src/kagzi/settings/table.py: python -m kagzi.cli.reference -->

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

A file counts if it belongs to the user who runs the program, or to root. One of anybody else is ignored with a
warning: in a directory that others can write to, it would choose the app that is executed. In a container that runs
as root with a mounted project of another user, set the variables instead. The `.kagzi/` of another user is not taken
by itself, either.

A key ranks as high as where it was given. One from the environment or from code is not shown to a server whose address
comes from the file: set `KAGZI_URL` beside `KAGZI_AUTH_KEY`, or write `auth.key_file` beside `url`.

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
        secrets=", ".join(
            f"`{variable(field)}_FILE`" for field in fields if is_secret(field) and f"{field}_file" not in fields
        ),
    )


def _default(field: str) -> str:
    value = default(field)
    return "" if value is None else f"`{show(field, value)}`"


_COMMANDS = """\
# Commands

<!-- Made from the commands themselves: python -m kagzi.cli.reference -->

`kagzi` and `python -m kagzi` are the same. Data goes to standard output, everything else to standard error. Tables are
drawn on a terminal only; elsewhere a row is a line with tabs between its cells, and `--json` prints one JSON document
whose keys do not change. Control and bidi characters that others wrote are written out, in logs and tables as Python
does and in JSON as JSON does, so that they act on nobody's terminal. Colours heed `NO_COLOR` and `FORCE_COLOR`.
[Settings](settings.md) say where runs live.

| exit code | |
|---|---|
| 0 | done |
| 1 | the run failed, or the command did |
| 2 | wrong usage, or a setting that cannot be used |
| 3 | there is no such run, worker, namespace or key |
| 4 | the database or server cannot be reached |
| 5 | conflict: the id or name is taken, or what the command is about has ended already, or has not ended yet |
| 124 | waited long enough; the run goes on |
| 130 | interrupted |
{commands}"""


def commands_page() -> str:
    return _COMMANDS.format(commands="".join(f"\n{section}" for section in _sections(cli, "kagzi")))


def _sections(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    if isinstance(command, click.Group):
        if command is not cli:
            yield f"## {path}\n\n{_help(command)}\n"
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _sections(found, f"{path} {name}")
        return
    usage = " ".join(command.collect_usage_pieces(context))
    level = "##" if path.count(" ") == 1 else "###"
    rows = "".join(
        f"| `{_spelling(option)}` | {_meaning(option, context)} |\n"
        for option in command.get_params(context)
        if isinstance(option, click.Option) and "--help" not in option.opts
    )
    yield f"{level} {path}\n\n    {path} {usage}\n\n{_help(command)}\n\n| option | |\n|---|---|\n{rows}"


def _help(command: click.Command) -> str:
    blocks = inspect.cleandoc(command.help or "").split("\n\n")
    shown = []
    for block in blocks:
        if block.startswith("\b"):
            lines = block.splitlines()[1:]
            shown.append("\n".join(["```console", *(f"$ {line}" for line in lines), "```"]))
        else:
            shown.append(block)
    return "\n\n".join(shown)


def _spelling(option: click.Option) -> str:
    names = ", ".join(option.opts)
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        what = "|".join(str(choice) for choice in option.type.choices)
    else:
        what = option.metavar or "NUMBER"
    return f"{names} {what}".replace("|", "\\|")


def _meaning(option: click.Option, context: click.Context) -> str:
    shown = f" [{option.get_default(context)}]" if option.show_default else ""
    return f"{option.help or ''}{shown}".replace("|", "\\|")


PAGES = {"settings.md": settings_page, "cli.md": commands_page}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path("docs") / name).write_text(page(), encoding="utf-8")
