"""kagzi completion"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kagzi.errors import InvalidRequest

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_KAGZI_COMPLETE"


@click.command(short_help="Print what completes commands in a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands and options of `kagzi`, and ids of runs, workflows and queues.

    \b
    bash: echo 'eval "$(kagzi completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(kagzi completion zsh)"' >> ~/.zshrc
    fish: kagzi completion fish > ~/.config/fish/completions/kagzi.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise InvalidRequest(f"there is no completion for {shell}")
    # Without the check of bash's version, which asks a bash: the script says itself what it needs.
    made = found(ctx.find_root().command, {}, "kagzi", _VARIABLE)
    click.echo(made.source_template % made.source_vars())
