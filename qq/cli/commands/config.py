"""`qq config`: shows the settings of a node, and changes some of them until its next start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from qq.cli.client.api import path_of
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import REQUIRED
from qq.cli.options import with_node, with_output
from qq.cli.terminal.escaping import escaped
from qq.cli.terminal.output import print_rows

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote

_TEXT = "text/plain"
_COLUMNS = ("name", "value")
_name = click.option("--name", type=REQUIRED, required=True, metavar="NAME", help="Setting, as `log_level`.")


@click.group("config", cls=CommandGroup)
def config_command() -> None:
    """Show the settings of a node, and change some of them until its next start."""


@config_command.command("show", short_help="show the settings in force at the asked node")
@click.option("--name", type=REQUIRED, metavar="TEXT", help="Only settings with this text in their names.")
@with_output
@with_node
def show_config(node: Remote, *, name: str | None, form: str) -> int:
    """Show the settings in force at the asked node, without secrets."""
    content = bytearray()
    with node.download(path_of("config", "effective"), _TEXT) as answer:
        while part := answer.read(64 * 1024):
            content += part
    rows: list[dict[str, str]] = []
    for line in content.decode(errors="replace").splitlines():
        setting, _, value = line.partition(" = ")
        if name is None or name in setting:
            rows.append({"name": setting, "value": value})
    print_rows(form, rows, _COLUMNS)
    return 0


@config_command.command("set", short_help="change a setting of the asked node until its next start")
@_name
@click.option("--value", required=True, metavar="VALUE", help="New value.")
@with_node
def set_config(node: Remote, *, name: str, value: str) -> int:
    """Change a setting of the asked node until its next start.

    They are log_level, memory_high_watermark, memory_high_watermark_bytes and disk_free_limit_bytes.
    """
    node.send("PUT", path_of("config", "effective", name), {"value": _read(value)})
    print(f"{escaped(name)} is {escaped(value)} until the node's next start")
    return 0


@config_command.command("reset", short_help="return to the value that a setting had at the node's start")
@_name
@with_node
def reset_config(node: Remote, *, name: str) -> int:
    """Return to the value that a setting had at the start of the asked node."""
    node.send("DELETE", path_of("config", "effective", name))
    print(f"{escaped(name)} is as at the node's start")
    return 0


def _read(text: str) -> Any:
    """Return a number, or the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
