"""`qq delete`: removes objects, with a command for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli import objects
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import REQUIRED
from qq.cli.options import with_binding, with_force, with_name, with_node, with_owner, with_vhost

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote

_with_idempotently = click.option(
    "--idempotently", "may_be_missing", is_flag=True, help="A missing object is no error."
)
_with_if_unused = click.option("--if-unused", is_flag=True, help="Only if it is unused.")


@click.group("delete", cls=CommandGroup)
def delete_command() -> None:
    """Remove an object, with everything that belongs to it."""


@delete_command.command("queue")
@with_name
@with_vhost
@_with_if_unused
@click.option("--if-empty", is_flag=True, help="Only if it is empty.")
@_with_idempotently
@with_node
def queue(
    node: Remote, *, name: str, vhost: str, if_unused: bool, if_empty: bool, may_be_missing: bool
) -> int:
    """Delete a queue with its messages."""
    query = {key: "true" for key, is_set in (("if-unused", if_unused), ("if-empty", if_empty)) if is_set}
    return objects.delete(node, objects.queue_object(vhost, name), query=query, may_be_missing=may_be_missing)


@delete_command.command("exchange")
@with_name
@with_vhost
@_with_if_unused
@_with_idempotently
@with_node
def exchange(node: Remote, *, name: str, vhost: str, if_unused: bool, may_be_missing: bool) -> int:
    """Delete an exchange."""
    query = {"if-unused": "true"} if if_unused else {}
    return objects.delete(
        node, objects.exchange_object(vhost, name), query=query, may_be_missing=may_be_missing
    )


@delete_command.command("binding")
@with_binding
@_with_idempotently
@with_node
def binding(node: Remote, *, may_be_missing: bool, **ends: Any) -> int:
    """Remove the binding of a queue, or of an exchange, to an exchange."""
    return objects.unbind(node, objects.BindingObject(**ends), may_be_missing=may_be_missing)


@delete_command.command("permission")
@with_vhost
@with_owner
@_with_idempotently
@with_node
def permission(node: Remote, *, vhost: str, owner: str, may_be_missing: bool) -> int:
    """Remove the permissions of a user in a virtual host."""
    return objects.delete(node, objects.permission_object(vhost, owner), may_be_missing=may_be_missing)


@delete_command.command("topic-permission")
@with_vhost
@with_owner
@click.option("--exchange", type=REQUIRED, metavar="NAME", help="[default: all exchanges]")
@_with_idempotently
@with_node
def topic_permission(
    node: Remote, *, vhost: str, owner: str, exchange: str | None, may_be_missing: bool
) -> int:
    """Remove the topic permissions of a user."""
    target = objects.topic_permission_object(vhost, owner, exchange)
    return objects.delete(node, target, may_be_missing=may_be_missing)


@delete_command.command("parameter")
@click.option("--component", type=REQUIRED, required=True, metavar="NAME", help="Component of the parameter.")
@with_name
@with_vhost
@_with_idempotently
@with_node
def parameter(node: Remote, *, component: str, name: str, vhost: str, may_be_missing: bool) -> int:
    """Remove a parameter of a virtual host."""
    target = objects.parameter_object(vhost, component, name)
    return objects.delete(node, target, may_be_missing=may_be_missing)


@delete_command.command("vhost-limit")
@with_name
@with_vhost
@_with_idempotently
@with_node
def vhost_limit(node: Remote, *, name: str, vhost: str, may_be_missing: bool) -> int:
    """Remove a limit of a virtual host."""
    return objects.delete(node, objects.limit_object("vhost", vhost, name), may_be_missing=may_be_missing)


@delete_command.command("user-limit")
@with_name
@with_owner
@_with_idempotently
@with_node
def user_limit(node: Remote, *, name: str, owner: str, may_be_missing: bool) -> int:
    """Remove a limit of a user."""
    return objects.delete(node, objects.limit_object("user", owner, name), may_be_missing=may_be_missing)


@delete_command.command("user")
@with_name
@_with_idempotently
@with_force
@with_node
def user(node: Remote, *, name: str, may_be_missing: bool, query: dict[str, str]) -> int:
    """Delete a user."""
    return objects.delete(node, objects.user_object(name), query=query, may_be_missing=may_be_missing)


def _delete_cluster_object(name: str, kind: str, path: str) -> click.Command:
    """Make the command that deletes a kind of object outside of virtual hosts."""

    @with_name
    @_with_idempotently
    @with_node
    def delete(node: Remote, *, name: str, may_be_missing: bool) -> int:
        return objects.delete(node, objects.cluster_object(kind, name, path), may_be_missing=may_be_missing)

    delete.__doc__ = f"Delete a {kind}."
    return click.command(name)(delete)


def _delete_policy(name: str, *, operator: bool) -> click.Command:
    @with_name
    @with_vhost
    @_with_idempotently
    @with_node
    def delete(node: Remote, *, name: str, vhost: str, may_be_missing: bool) -> int:
        target = objects.policy_object(vhost, name, operator=operator)
        return objects.delete(node, target, may_be_missing=may_be_missing)

    delete.__doc__ = f"Remove {'an operator policy' if operator else 'a policy'}."
    return click.command(name)(delete)


for _command in (
    _delete_cluster_object("vhost", "virtual host", "vhosts"),
    _delete_cluster_object("global-parameter", "global parameter", "global-parameters"),
    _delete_policy("policy", operator=False),
    _delete_policy("operator-policy", operator=True),
):
    delete_command.add_command(_command)
