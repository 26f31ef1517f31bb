"""The root command `qq` and the sections of its help."""

from __future__ import annotations

import click

from qq import __version__
from qq.cli.tree import Root

NAME = "qq"
COMPLETION_VARIABLE = "_QQ_COMPLETE"
"""Environment variable by which a shell requests completions (completing.py)."""
SECTIONS = {
    "Nodes": ("up", "serve"),
    "The cluster": ("status", "doctor", "leader", "member", "drain", "revive", "check", "upgrade"),
    "What is in it": ("list", "top", "declare", "delete", "definitions", "change-password", "close"),
    "Messages": ("publish", "get", "peek", "move", "purge"),
    "Data": ("backup", "restore", "recover", "inspect"),
    "This command": ("context", "completion"),
}

root = Root(
    package="qq.cli.commands",
    sections=SECTIONS,
    name=NAME,
    help="A message broker with replicated queues.",
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=True,
)
click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")(root)
