"""`qq delete`: its commands, each for a kind of object, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli.options import asks_node, for_user, in_vhost, named, names_binding
from qq.cli.tree import CommandGroup
from qq.cli.values import REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_idempotently = click.option(
    "--idempotently", "may_be_missing", is_flag=True, help="It is no error if it is not there."
)
_if_unused = click.option("--if-unused", is_flag=True, help="Only if nobody uses it.")


@click.group("delete", cls=CommandGroup, short_help="remove a queue, an exchange, a user, a policy, ...")
def command() -> None:
    """Remove something, with all that goes with it."""


@command.command("queue")
@named
@in_vhost
@_if_unused
@click.option("--if-empty", is_flag=True, help="Only if no message is in it.")
@_idempotently
@asks_node
def queue(
    node: Remote, *, name: str, vhost: str, if_unused: bool, if_empty: bool, may_be_missing: bool
) -> int:
    """Delete a queue with its messages."""
    from qq.cli import objects  # noqa: PLC0415

    query = {key: "true" for key, is_set in (("if-unused", if_unused), ("if-empty", if_empty)) if is_set}
    return objects.delete(node, objects.queue(vhost, name), query=query, may_be_missing=may_be_missing)


@command.command("exchange")
@named
@in_vhost
@_if_unused
@_idempotently
@asks_node
def exchange(node: Remote, *, name: str, vhost: str, if_unused: bool, may_be_missing: bool) -> int:
    """Delete an exchange."""
    from qq.cli import objects  # noqa: PLC0415

    query = {"if-unused": "true"} if if_unused else {}
    return objects.delete(node, objects.exchange(vhost, name), query=query, may_be_missing=may_be_missing)


@command.command("binding")
@names_binding
@_idempotently
@asks_node
def binding(node: Remote, *, may_be_missing: bool, **ends: Any) -> int:
    """Remove the binding of a queue, or of an exchange, to an exchange."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.unbind(node, objects.WantedBinding(**ends), may_be_missing=may_be_missing)


@command.command("permission")
@in_vhost
@for_user
@_idempotently
@asks_node
def permission(node: Remote, *, vhost: str, owner: str, may_be_missing: bool) -> int:
    """Have a user be permitted nothing in a virtual host."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.delete(node, objects.permission(vhost, owner), may_be_missing=may_be_missing)


@command.command("topic-permission")
@in_vhost
@for_user
@click.option("--exchange", type=REQUIRED, metavar="NAME", help="[default: all exchanges]")
@_idempotently
@asks_node
def topic_permission(
    node: Remote, *, vhost: str, owner: str, exchange: str | None, may_be_missing: bool
) -> int:
    """Remove what a user is permitted of routing keys."""
    from qq.cli import objects  # noqa: PLC0415

    thing = objects.topic_permission(vhost, owner, exchange)
    return objects.delete(node, thing, may_be_missing=may_be_missing)


@command.command("parameter")
@click.option("--component", type=REQUIRED, required=True, metavar="NAME", help="Whose it is.")
@named
@in_vhost
@_idempotently
@asks_node
def parameter(node: Remote, *, component: str, name: str, vhost: str, may_be_missing: bool) -> int:
    """Remove a parameter of a virtual host."""
    from qq.cli import objects  # noqa: PLC0415

    thing = objects.parameter(vhost, component, name)
    return objects.delete(node, thing, may_be_missing=may_be_missing)


@command.command("vhost-limit")
@named
@in_vhost
@_idempotently
@asks_node
def vhost_limit(node: Remote, *, name: str, vhost: str, may_be_missing: bool) -> int:
    """Remove a limit of a virtual host."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.delete(node, objects.limit("vhost", vhost, name), may_be_missing=may_be_missing)


@command.command("user-limit")
@named
@for_user
@_idempotently
@asks_node
def user_limit(node: Remote, *, name: str, owner: str, may_be_missing: bool) -> int:
    """Remove a limit of a user."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.delete(node, objects.limit("user", owner, name), may_be_missing=may_be_missing)


def _of_cluster(name: str, kind: str, path: str) -> click.Command:
    """Make the command that deletes a kind of object outside of virtual hosts."""

    @named
    @_idempotently
    @asks_node
    def delete(node: Remote, *, name: str, may_be_missing: bool) -> int:
        from qq.cli import objects  # noqa: PLC0415

        return objects.delete(node, objects.named(kind, name, path), may_be_missing=may_be_missing)

    delete.__doc__ = f"Delete a {kind}."
    return click.command(name)(delete)


def _policy(name: str, *, operator: bool) -> click.Command:
    @named
    @in_vhost
    @_idempotently
    @asks_node
    def delete(node: Remote, *, name: str, vhost: str, may_be_missing: bool) -> int:
        from qq.cli import objects  # noqa: PLC0415

        thing = objects.policy(vhost, name, operator=operator)
        return objects.delete(node, thing, may_be_missing=may_be_missing)

    delete.__doc__ = f"Remove {'an operator policy' if operator else 'a policy'}."
    return click.command(name)(delete)


for _command in (
    _of_cluster("user", "user", "users"),
    _of_cluster("vhost", "virtual host", "vhosts"),
    _of_cluster("global-parameter", "global parameter", "global-parameters"),
    _policy("policy", operator=False),
    _policy("operator-policy", operator=True),
):
    command.add_command(_command)
