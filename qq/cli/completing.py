"""Completion of `qq` commands by shells."""

from __future__ import annotations

from click.shell_completion import get_completion_class, shell_complete

from qq.cli.root import COMPLETION_VARIABLE, NAME, root
from qq.errors import CommandError


def script(shell: str) -> str:
    """Return the completion script for a shell. Raises CommandError."""
    completion = get_completion_class(shell)
    if completion is None:
        raise CommandError(f"there is no completion for {shell}")
    return completion(root, {}, NAME, COMPLETION_VARIABLE).source()


def answer(instruction: str) -> int:
    """Answer a request of a completion script on standard output; return the exit status."""
    return shell_complete(root, {}, NAME, COMPLETION_VARIABLE, instruction)
