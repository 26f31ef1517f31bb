"""`qq declare`: makes or changes objects, with a command for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli import objects
from qq.cli.client.new_password import prompt_or_read, with_new_password
from qq.cli.command_line.tree import CommandGroup
from qq.cli.command_line.values import JSON, NAME, OBJECT, REQUIRED
from qq.cli.options import (
    with_arguments,
    with_binding,
    with_force,
    with_name,
    with_node,
    with_owner,
    with_vhost,
)

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote

_durable = click.option("--durable", type=bool, default=True, metavar="BOOL", help="[default: true]")
_auto_delete = click.option(
    "--auto-delete",
    type=bool,
    default=False,
    metavar="BOOL",
    help="Delete it when its last user is gone.  [default: false]",
)
_value = click.option(
    "--value", type=JSON, required=True, metavar="JSON", help="Value as JSON: a text has quotation marks."
)
_limit = click.option(
    "--value", type=int, required=True, metavar="NUMBER", help="A negative number means no limit."
)


@click.group("declare", cls=CommandGroup)
def declare_command() -> None:
    """Make an object, or change it to the given values. Every command may be repeated."""


@declare_command.command("queue")
@with_name
@with_vhost
@click.option(
    "--type", "kind", type=click.Choice(["quorum", "classic"]), help="[default: that of the virtual host]"
)
@_durable
@_auto_delete
@with_arguments
@with_node
def queue(
    node: Remote, *, name: str, vhost: str, kind: str | None, arguments: dict[str, Any], **flags: bool
) -> int:
    """Declare a queue."""
    if kind is not None:
        if arguments.get("x-queue-type", kind) != kind:
            raise click.UsageError("--type and x-queue-type in --arguments do not agree: give one of them")
        arguments = {**arguments, "x-queue-type": kind}
    return objects.put(node, objects.queue_object(vhost, name), {**flags, "arguments": arguments})


@declare_command.command("exchange")
@with_name
@with_vhost
@click.option("--type", "kind", type=NAME, default="direct", metavar="TYPE", help="[default: direct]")
@_durable
@_auto_delete
@click.option(
    "--internal",
    type=bool,
    default=False,
    metavar="BOOL",
    help="Only bindings may publish to it.  [default: false]",
)
@with_arguments
@with_node
def exchange(node: Remote, *, name: str, vhost: str, kind: str, **options: Any) -> int:
    """Declare an exchange: direct, fanout, topic, headers, ..."""
    return objects.put(node, objects.exchange_object(vhost, name), {**options, "type": kind})


@declare_command.command("binding")
@with_binding
@with_node
def binding(node: Remote, **ends: Any) -> int:
    """Bind a queue, or an exchange, to an exchange."""
    return objects.bind(node, objects.BindingObject(**ends))


@declare_command.command("user")
@with_name
@click.option(
    "--tags", type=NAME, metavar="TAGS", help="Tags, with commas between.  [default: unchanged, or none]"
)
@with_new_password
@click.option(
    "--password-hash",
    "hashed",
    metavar="HASH",
    help="Hash as of `rabbitmqctl hash_password`, instead of a password.",
)
@click.option("--no-password", is_flag=True, help="The user can log in only with a certificate.")
@with_force
@with_node
def user(
    node: Remote,
    *,
    name: str,
    tags: str | None,
    file: str | None,
    hashed: str | None,
    no_password: bool,
    query: dict[str, str],
) -> int:
    """Make a user, or set its password. The password comes from a prompt or from a file."""
    if (file is not None) + (hashed is not None) + no_password > 1:
        raise click.UsageError("give one of --new-password-file, --password-hash and --no-password")
    secret: dict[str, str] = {}
    if hashed is not None:
        secret = {"password_hash": hashed}
    elif not no_password:
        secret = {"password": prompt_or_read(file)}
    target = objects.user_object(name)
    known: dict[str, Any] = {} if tags is not None else objects.settings_of(node, target) or {}
    status = objects.put(node, target, {"tags": known.get("tags", tags or ""), **secret}, query=query)
    objects.warn_of_tags(tags or "")
    return status


@declare_command.command("vhost")
@with_name
@click.option(
    "--description", type=NAME, metavar="TEXT", help="Description for people.  [default: unchanged, or none]"
)
@click.option(
    "--tags", type=NAME, metavar="TAGS", help="Tags, with commas between.  [default: unchanged, or none]"
)
@click.option(
    "--default-queue-type", type=click.Choice(["quorum", "classic"]), help="[default: unchanged, or classic]"
)
@with_node
def vhost(node: Remote, *, name: str, **options: Any) -> int:
    """Make a virtual host, or change its description."""
    target = objects.cluster_object("virtual host", name, "vhosts")
    known = objects.settings_of(node, target) or {}
    for option in ("description", "tags"):
        if options[option] is None:
            options[option] = known.get(option, "")
    return objects.put(node, target, options)


@declare_command.command("permission")
@with_vhost
@with_owner
@click.option(
    "--configure",
    type=NAME,
    required=True,
    metavar="REGEX",
    help="Names that the user may declare and delete.",
)
@click.option(
    "--write", type=NAME, required=True, metavar="REGEX", help="Names that the user may publish to."
)
@click.option(
    "--read", type=NAME, required=True, metavar="REGEX", help="Names that the user may consume from."
)
@with_node
def permission(node: Remote, *, vhost: str, owner: str, **patterns: str) -> int:
    """Set the permissions of a user in a virtual host."""
    return objects.put(node, objects.permission_object(vhost, owner), patterns)


@declare_command.command("topic-permission")
@with_vhost
@with_owner
@click.option("--exchange", type=REQUIRED, required=True, metavar="NAME", help="A topic exchange.")
@click.option("--write", type=NAME, required=True, metavar="REGEX", help="Routing keys for publishing.")
@click.option("--read", type=NAME, required=True, metavar="REGEX", help="Routing keys for bindings.")
@with_node
def topic_permission(node: Remote, *, vhost: str, owner: str, exchange: str, **patterns: str) -> int:
    """Set the routing keys that a user may use with an exchange."""
    collection = objects.topic_permission_object(vhost, owner, None)
    permission = objects.topic_permission_object(vhost, owner, exchange)
    return objects.put(node, permission, {"exchange": exchange, **patterns}, collection.path)


def _policy(name: str, *, operator: bool) -> click.Command:
    @with_name
    @with_vhost
    @click.option(
        "--pattern", type=NAME, required=True, metavar="REGEX", help="Names of the queues and exchanges."
    )
    @click.option(
        "--definition",
        type=OBJECT,
        required=True,
        metavar="JSON",
        help='Definition, as {"max-length": 1000}.',
    )
    @click.option(
        "--priority",
        type=int,
        default=0,
        metavar="NUMBER",
        help="The highest priority applies.  [default: 0]",
    )
    @click.option("--apply-to", "apply_to", metavar="KIND", help="Kind of object: queues, exchanges, ...")
    @with_node
    def put(node: Remote, *, name: str, vhost: str, apply_to: str | None, **options: Any) -> int:
        body = options if apply_to is None else {**options, "apply-to": apply_to}
        return objects.put(node, objects.policy_object(vhost, name, operator=operator), body)

    put.__doc__ = f"Set {'an operator policy' if operator else 'a policy'}."
    return click.command(name)(put)


declare_command.add_command(_policy("policy", operator=False))
declare_command.add_command(_policy("operator-policy", operator=True))


@declare_command.command("parameter")
@click.option("--component", type=REQUIRED, required=True, metavar="NAME", help="Component of the parameter.")
@with_name
@with_vhost
@_value
@with_node
def parameter(node: Remote, *, component: str, name: str, vhost: str, value: Any) -> int:
    """Set a parameter of a virtual host, of vhost-limits or operator_policy."""
    return objects.put(node, objects.parameter_object(vhost, component, name), {"value": value})


@declare_command.command("global-parameter")
@with_name
@_value
@with_node
def global_parameter(node: Remote, *, name: str, value: Any) -> int:
    """Set a parameter of the whole cluster."""
    return objects.put(
        node, objects.cluster_object("global parameter", name, "global-parameters"), {"value": value}
    )


@declare_command.command("vhost-limit")
@with_name
@with_vhost
@_limit
@with_node
def vhost_limit(node: Remote, *, name: str, vhost: str, value: int) -> int:
    """Set a limit of a virtual host: max-queues, max-connections, ..."""
    return objects.put(node, objects.limit_object("vhost", vhost, name), {"value": value})


@declare_command.command("user-limit")
@with_name
@with_owner
@_limit
@with_node
def user_limit(node: Remote, *, name: str, owner: str, value: int) -> int:
    """Set a limit of a user: max-connections, max-channels, ..."""
    return objects.put(node, objects.limit_object("user", owner, name), {"value": value})
