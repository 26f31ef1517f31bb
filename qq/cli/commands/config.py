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

_all_nodes = click.option(
    "--all-nodes",
    "of_all",
    is_flag=True,
    help="Change it at every member; the exit status is 1 unless all did.",
)


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
@_all_nodes
@with_node
def set_config(node: Remote, *, name: str, value: str, of_all: bool) -> int:
    """Change a setting of the asked node until its next start.

    They are log_level, memory_high_watermark, memory_high_watermark_bytes and disk_free_limit_bytes.
    """
    result = f"{escaped(name)} is {escaped(value)} until the node's next start"
    return _change(node, "PUT", name, {"value": _read(value)}, of_all=of_all, result=result)


@config_command.command("reset", short_help="return to the value that a setting had at the node's start")
@_name
@_all_nodes
@with_node
def reset_config(node: Remote, *, name: str, of_all: bool) -> int:
    """Return to the value that a setting had at the start of the asked node."""
    return _change(
        node, "DELETE", name, None, of_all=of_all, result=f"{escaped(name)} is as at the node's start"
    )


def _change(node: Remote, method: str, name: str, body: Any, *, of_all: bool, result: str) -> int:
    """Change a setting and print the result: of each node, if all are to change. Return the exit status."""
    path = path_of("config", "effective", name)
    if not of_all:
        node.send(method, path, body)
        print(result)
        return 0
    answer = node.send(method, path, body, query={"nodes": "all"}).document
    try:
        for each in answer["changed"]:
            print(f"{escaped(each)}: {result}")
        for each, reason in answer["unconfirmed"].items():
            print(f"{escaped(each)}: not confirmed: {escaped(reason)}")
        return 1 if answer["unconfirmed"] else 0
    except (KeyError, TypeError, AttributeError):
        raise node.foreign_answer() from None


def _read(text: str) -> Any:
    """Return a number, or the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) else text
