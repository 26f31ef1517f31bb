"""`qq completion`: completes commands in shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class, shell_complete

from qq.cli.root import COMPLETION_VARIABLE, NAME, root
from qq.errors import CommandError

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS), metavar="|".join(_SHELLS))
def completion_command(*, shell: str) -> int:
    """Print the completion script of a shell.

    For bash: `eval "$(qq completion bash)"` in the file ~/.bashrc.
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise CommandError(f"there is no completion for {shell}")
    print(completion(root, {}, NAME, COMPLETION_VARIABLE).source())
    return 0


def complete(instruction: str) -> int:
    """Answer a request of a completion script on standard output; return the exit status."""
    return shell_complete(root, {}, NAME, COMPLETION_VARIABLE, instruction)
