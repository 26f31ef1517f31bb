"""Options shared by several commands."""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from qq.cli.command_line.values import FILE, NAME, OBJECT, REQUIRED, SECONDS, URL

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., int]

TIMEOUT_S = 600.0
"""Seconds that commands which change members wait by default: a new node must first receive the log."""
FORMS = ("table", "json", "csv")
DEFAULT_VHOST = "/"


def known_contexts(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the names of contexts that begin with `begun`, for a shell's completion."""
    from qq.cli.client import contexts  # noqa: PLC0415

    return [name for name in contexts.load(contexts.file_of(os.environ)).by_name if name.startswith(begun)]


_NODE_OPTIONS = (
    click.option(
        "--url",
        "--http",
        "urls",
        type=URL,
        multiple=True,
        help="URL of the node; of several URLs the first that answers.  [default: QQ_URL, the current context, or "
        "http://127.0.0.1:15672]",
    ),
    click.option(
        "--context",
        metavar="NAME",
        shell_complete=known_contexts,
        help="Use the nodes of this context, see `qq context`.  [default: QQ_CONTEXT]",
    ),
    click.option("--user", metavar="USER", help="[default: QQ_USER, the user of the context, or guest]"),
    click.option(
        "--password-file",
        type=FILE,
        metavar="FILE",
        help="[default: QQ_PASSWORD_FILE, QQ_PASSWORD, the file of the context, or the password guest]",
    ),
    click.option("--password", metavar="PASSWORD", help="Other users see it in the list of processes."),
    click.option(
        "--ca-file",
        type=FILE,
        metavar="FILE",
        help="CA certificates that verify the nodes.  [default: QQ_CA_FILE, the file of the context, or the system's]",
    ),
)


def with_node(function: Command) -> Command:
    """Add the options that choose the node and the login; call the command with the resulting `Remote`.

    An option --timeout of the command sets how long the `Remote` tries.
    """

    @wraps(function)
    def run(*target: Any, timeout: float | None = None, ca_file: Any, **options: Any) -> int:
        from qq.cli.client.target import remote  # noqa: PLC0415

        return function(remote(*target, ca_file=ca_file, timeout_s=timeout), **options)

    return _with_target(run)


def with_target(function: Command) -> Command:
    """Add the options that choose the node and the login; call the command with a `Context` and a `ClientLogin`."""

    @wraps(function)
    def run(*chosen: Any, ca_file: Any, **options: Any) -> int:
        from qq.cli.client.target import target  # noqa: PLC0415

        return function(*target(*chosen, ca_file=ca_file), **options)

    return _with_target(run)


def _with_target(function: Command) -> Command:
    @wraps(function)
    def run(
        urls: tuple[str, ...],
        context: str | None,
        user: str | None,
        password: str | None,
        password_file: Any,
        **options: Any,
    ) -> int:
        if password is not None and password_file is not None:
            raise click.UsageError("give either --password or --password-file")
        if urls and context is not None:
            raise click.UsageError("give either --url or --context")
        return function(urls, context, user, password, password_file, **options)

    for option in reversed(_NODE_OPTIONS):
        run = option(run)
    return run


with_timeout = click.option(
    "--timeout",
    type=SECONDS,
    default=TIMEOUT_S,
    metavar="SECONDS",
    help=f"How long to wait.  [default: {TIMEOUT_S:g}]",
)

with_output = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(FORMS),
    default=FORMS[0],
    help="A table for people, a JSON document, or comma-separated values (RFC 4180).  [default: table]",
)


def with_output_and_json(function: Command) -> Command:
    """Add --output to a command, and its older form --json."""

    @wraps(function)
    def printing(*arguments: Any, form: str, as_json: bool, **options: Any) -> int:
        return function(*arguments, form="json" if as_json else form, **options)

    of_json = click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
    return with_output(of_json(printing))


def with_vhost(function: Command) -> Command:
    """Add --vhost to a command, with `/` as its default."""
    option = click.option(
        "--vhost", type=NAME, default=DEFAULT_VHOST, metavar="NAME", help="The virtual host.  [default: /]"
    )
    return option(function)


with_name = click.option("--name", type=REQUIRED, required=True, metavar="NAME", help="Name of the object.")
with_owner = click.option(
    "--for-user", "owner", type=REQUIRED, required=True, metavar="USER", help="The user to whom it applies."
)


def with_force(function: Command) -> Command:
    """Add --force to a command that may leave no administrator; the command gets it as the `query` of the request."""

    @wraps(function)
    def run(*arguments: Any, force: bool, **options: Any) -> int:
        return function(*arguments, query={"force": "true"} if force else {}, **options)

    return click.option("--force", is_flag=True, help="Also if no administrator is left.")(run)


with_arguments = click.option(
    "--arguments", type=OBJECT, default="{}", metavar="JSON", help='Arguments, as {"x-max-length": 1000}.'
)

_BINDING_OPTIONS = (
    with_vhost,
    click.option("--source", type=NAME, required=True, metavar="EXCHANGE", help="Source exchange."),
    click.option(
        "--destination-type",
        "kind",
        type=click.Choice(["queue", "exchange"]),
        default="queue",
        help="[default: queue]",
    ),
    click.option(
        "--destination", type=REQUIRED, required=True, metavar="NAME", help="Destination queue or exchange."
    ),
    click.option("--routing-key", type=NAME, default="", metavar="KEY", help="[default: the empty key]"),
    with_arguments,
)


_GROUP_OPTIONS = (
    click.option("--queue", type=REQUIRED, required=True, metavar="NAME", help="Queue of the group."),
    click.option("--group", "name", type=REQUIRED, required=True, metavar="NAME", help="Name of the group."),
    with_vhost,
)


def with_group(function: Command) -> Command:
    """Add the options that name a group of a queue; call the command with the `ApiObject` of the group."""

    @wraps(function)
    def run(*arguments: Any, queue: str, name: str, vhost: str, **options: Any) -> int:
        from qq.cli.objects import group_object  # noqa: PLC0415

        return function(*arguments, group=group_object(vhost, queue, name), **options)

    command: Command = run
    for option in reversed(_GROUP_OPTIONS):
        command = option(command)
    return command


def with_binding(function: Command) -> Command:
    """Add the options that name a binding: the fields of `objects.BindingObject`."""
    for option in reversed(_BINDING_OPTIONS):
        function = option(function)
    return function
