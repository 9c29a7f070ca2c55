"""Every command explains itself, and nothing heavy is loaded for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from kagzi import __version__
from kagzi.cli.main import COMMANDS, cli, exit_code
from kagzi.errors import (
    Conflict,
    InvalidRequest,
    KagziError,
    MissingDependency,
    NotFound,
    SchemaMismatch,
    Unavailable,
)
from tests.cli.conftest import Shell


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def find(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_and_every_option_has_help(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    assert "Usage: " in shown.output
    command = find(path)
    assert command.help
    assert len(command.get_short_help_str(limit=1000)) <= 80
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.opts} of {' '.join(path)}"
            assert option.help[0].isupper()


def test_version_by_both_names(shell: Shell) -> None:
    assert shell.afresh("--version").out == f"kagzi {__version__}\n"


def test_little_is_loaded_for_help(shell: Shell) -> None:
    code = (
        "import sys\nfrom kagzi.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nprint(' '.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=shell.environ, capture_output=True, text=True, check=True)
    assert not {"asyncpg", "grpc", "rich", "uvloop", "starlette", "pydantic"} & set(done.stderr.split())


@pytest.mark.parametrize(
    ("wrong", "right"),
    [(("serve",), "server"), (("rns", "list"), "runs"), (("runs", "lst"), "list"), (("key", "list"), "keys")],
)
def test_a_name_that_is_nearly_right_gets_a_hint(wrong: tuple[str, ...], right: str, shell: Shell) -> None:
    done = shell(*wrong)
    assert done.code == 2, done
    assert "No such command" in done.err
    assert f"'{right}'" in done.err.partition("Did you mean")[2]


def test_unknown_commands_and_options_are_wrong_usage(shell: Shell) -> None:
    for arguments in (["fly"], ["runs", "fly"], ["doctor", "--fly"], ["start"], ["server", "--port", "many"]):
        done = shell(*arguments)
        assert done.code == 2, done
        assert "Usage: kagzi" in done.err
        assert done.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest, 2),
        (NotFound, 3),
        (Unavailable, 4),
        (MissingDependency, 1),
        (Conflict, 5),
        (SchemaMismatch, 1),
        (KagziError, 1),
    ],
)
def test_exit_codes(error: type[KagziError], code: int) -> None:
    assert exit_code(error("x")) == code


def test_the_order_of_the_help_is_ours() -> None:
    assert list(COMMANDS)[:3] == ["init", "dev", "run"]
