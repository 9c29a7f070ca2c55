"""The `kagzi` command: which commands there are, and what becomes of their errors.

Each command is a function in a file of its noun. A command's file is imported when that command is asked for, and what
it needs (drivers, gRPC, rich) when it runs: `kagzi --version` loads none of it.

Exit codes: 0 done; 1 the run failed, or the command; 2 wrong usage or settings; 3 not found; 4 the database or server
is out of reach; 5 conflict; 124 waited long enough; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NoReturn

import click

from kagzi.errors import (
    Conflict,
    InvalidRequest,
    KagziError,
    MissingDependency,
    NotFound,
    Unavailable,
)
from kagzi.version import __version__

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
UNREACHABLE: Final = 4
CONFLICT: Final = 5
TIMED_OUT: Final = 124
INTERRUPTED: Final = 130

# In the order of the help: module and function.
COMMANDS: Final = {
    "init": ("kagzi.cli.init", "init"),
    "dev": ("kagzi.cli.dev", "dev"),
    "run": ("kagzi.cli.one_shot", "one_shot"),
    "server": ("kagzi.cli.server", "server"),
    "worker": ("kagzi.cli.worker", "worker"),
    "start": ("kagzi.cli.start", "start"),
    "runs": ("kagzi.cli.runs", "runs"),
    "schedules": ("kagzi.cli.schedules", "schedules"),
    "jobs": ("kagzi.cli.jobs", "jobs"),
    "queues": ("kagzi.cli.queues", "queues"),
    "limits": ("kagzi.cli.limits", "limits"),
    "workers": ("kagzi.cli.workers", "workers"),
    "replay": ("kagzi.cli.replay", "replay"),
    "workflows": ("kagzi.cli.workflows", "workflows"),
    "versions": ("kagzi.cli.versions", "versions"),
    "namespaces": ("kagzi.cli.namespaces", "namespaces"),
    "keys": ("kagzi.cli.keys", "keys"),
    "audit": ("kagzi.cli.audit", "audit"),
    "migrate": ("kagzi.cli.migrate", "migrate"),
    "doctor": ("kagzi.cli.doctor", "doctor"),
    "check": ("kagzi.cli.check", "check"),
    "completion": ("kagzi.cli.completion", "completion"),
}


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click looks for similar names among the commands that are loaded, and here none is.
        name = args[0]
        if name not in COMMANDS and (close := get_close_matches(name, COMMANDS)):
            ctx.fail(f"No such command {name!r}. Did you mean {' or '.join(map(repr, close))}?")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Settings come from flags, then KAGZI_* variables, then kagzi.toml; `kagzi doctor` shows them. "
    "Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 out of reach, 5 conflict, 124 timeout, 130 interrupted.",
)
@click.version_option(__version__, prog_name="kagzi", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable workflows in plain Python.

    `kagzi worker shop.py` executes the workflows of an app, `kagzi start` starts a run, `kagzi runs` shows what became
    of it. Without any setting, runs live in an SQLite file in .kagzi/ of your project.
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    try:
        code = cli.main(arguments, prog_name="kagzi", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough. What is left of it must not fail when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except TimeoutError as error:
        _say(error)
        sys.exit(TIMED_OUT)
    except KagziError as error:
        _say(error)
        sys.exit(exit_code(error))
    sys.exit(code if isinstance(code, int) else 0)


def exit_code(error: KagziError) -> int:
    match error:
        case MissingDependency():
            return FAILED
        case InvalidRequest():
            return USAGE
        case NotFound():
            return NOT_FOUND
        case Unavailable():
            return UNREACHABLE
        case Conflict():
            return CONFLICT
        case _:
            return FAILED


def _say(error: BaseException) -> None:
    from kagzi.cli.output import prose

    for line in f"Error: {error}".splitlines():
        prose(line, err=True)
