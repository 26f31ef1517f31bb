"""`qq completion`: its argument."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help="print the script by which a shell completes commands")
@click.argument("shell", type=click.Choice(_SHELLS), metavar="|".join(_SHELLS))
def command(*, shell: str) -> int:
    """Print the script by which a shell completes commands.

    For bash: `eval "$(qq completion bash)"` in the file ~/.bashrc.
    """
    from qq.cli.completing import script  # noqa: PLC0415

    print(script(shell))
    return 0
