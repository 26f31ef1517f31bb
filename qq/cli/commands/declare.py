"""`qq declare`: its commands, each for a kind of object, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qq.cli.options import asks_node, for_user, in_vhost, named, names_binding, with_arguments
from qq.cli.tree import CommandGroup
from qq.cli.values import JSON, NAME, OBJECT, REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_durable = click.option("--durable", type=bool, default=True, metavar="BOOL", help="[default: true]")
_auto_delete = click.option(
    "--auto-delete",
    type=bool,
    default=False,
    metavar="BOOL",
    help="Gone with the last one who uses it.  [default: false]",
)
_value = click.option(
    "--value", type=JSON, required=True, metavar="JSON", help="As JSON: a text has quotation marks."
)
_limit = click.option("--value", type=int, required=True, metavar="NUMBER", help="Negative: no limit.")


@click.group("declare", cls=CommandGroup, short_help="make a queue, an exchange, a user, a policy, ...")
def command() -> None:
    """Make something, or have it be as you say. Each may be repeated."""


@command.command("queue")
@named
@in_vhost
@click.option(
    "--type", "kind", type=click.Choice(["quorum", "classic"]), help="[default: that of the virtual host]"
)
@_durable
@_auto_delete
@with_arguments
@asks_node
def queue(
    node: Remote, *, name: str, vhost: str, kind: str | None, arguments: dict[str, Any], **flags: bool
) -> int:
    """Declare a queue."""
    from qq.cli import objects  # noqa: PLC0415

    if kind is not None:
        if arguments.get("x-queue-type", kind) != kind:
            raise click.UsageError("--type and x-queue-type in --arguments do not agree: give one of them")
        arguments = {**arguments, "x-queue-type": kind}
    return objects.put(node, objects.queue(vhost, name), {**flags, "arguments": arguments})


@command.command("exchange")
@named
@in_vhost
@click.option("--type", "kind", type=NAME, default="direct", metavar="TYPE", help="[default: direct]")
@_durable
@_auto_delete
@click.option(
    "--internal", type=bool, default=False, metavar="BOOL", help="Only for bindings.  [default: false]"
)
@with_arguments
@asks_node
def exchange(node: Remote, *, name: str, vhost: str, kind: str, **options: Any) -> int:
    """Declare an exchange: direct, fanout, topic, headers, ..."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.put(node, objects.exchange(vhost, name), {**options, "type": kind})


@command.command("binding")
@names_binding
@asks_node
def binding(node: Remote, **ends: Any) -> int:
    """Bind a queue, or an exchange, to an exchange."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.bind(node, objects.WantedBinding(**ends))


@command.command("user")
@named
@click.option("--tags", type=NAME, default="", metavar="TAGS", help="With commas between.  [default: none]")
@click.option(
    "--new-password-file",
    "file",
    metavar="FILE|-",
    help="A file with the password and nothing else, or - for standard input.  [default: it is asked for]",
)
@click.option(
    "--password-hash",
    "hashed",
    metavar="HASH",
    help="As `rabbitmqctl hash_password` makes it, instead of a password.",
)
@click.option("--no-password", is_flag=True, help="Only a certificate lets the user in.")
@asks_node
def user(
    node: Remote, *, name: str, tags: str, file: str | None, hashed: str | None, no_password: bool
) -> int:
    """Make a user, or replace one. The password is asked for, or read from a file."""
    from qq.cli import users  # noqa: PLC0415

    if (file is not None) + (hashed is not None) + no_password > 1:
        raise click.UsageError("give one of --new-password-file, --password-hash and --no-password")
    secret: dict[str, str] = {}
    if hashed is not None:
        secret = {"password_hash": hashed}
    elif not no_password:
        secret = {"password": users.new_password(file)}
    return users.put_user(node, name, tags, secret)


@command.command("vhost")
@named
@click.option("--description", type=NAME, default="", metavar="TEXT", help="For people.")
@click.option("--tags", type=NAME, default="", metavar="TAGS", help="With commas between.")
@click.option(
    "--default-queue-type", type=click.Choice(["quorum", "classic"]), help="[default: as it is, or classic]"
)
@asks_node
def vhost(node: Remote, *, name: str, **options: Any) -> int:
    """Make a virtual host, or describe one anew."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.put(node, objects.named("virtual host", name, "vhosts"), options)


@command.command("permission")
@in_vhost
@for_user
@click.option(
    "--configure", type=NAME, required=True, metavar="REGEX", help="What may be declared and deleted."
)
@click.option("--write", type=NAME, required=True, metavar="REGEX", help="Where may be published.")
@click.option("--read", type=NAME, required=True, metavar="REGEX", help="What may be consumed.")
@asks_node
def permission(node: Remote, *, vhost: str, owner: str, **patterns: str) -> int:
    """Say what a user may do in a virtual host."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.put(node, objects.permission(vhost, owner), patterns)


@command.command("topic-permission")
@in_vhost
@for_user
@click.option("--exchange", type=REQUIRED, required=True, metavar="NAME", help="A topic exchange.")
@click.option("--write", type=NAME, required=True, metavar="REGEX", help="Keys that may be published with.")
@click.option("--read", type=NAME, required=True, metavar="REGEX", help="Keys that may be bound with.")
@asks_node
def topic_permission(node: Remote, *, vhost: str, owner: str, exchange: str, **patterns: str) -> int:
    """Say which routing keys a user may use with an exchange."""
    from qq.cli import objects  # noqa: PLC0415

    everything = objects.topic_permission(vhost, owner, None)
    thing = objects.topic_permission(vhost, owner, exchange)
    return objects.put(node, thing, {"exchange": exchange, **patterns}, everything.path)


def _policy(name: str, *, operator: bool) -> click.Command:
    @named
    @in_vhost
    @click.option("--pattern", type=NAME, required=True, metavar="REGEX", help="The names that it is for.")
    @click.option("--definition", type=OBJECT, required=True, metavar="JSON", help="As an object.")
    @click.option(
        "--priority", type=int, default=0, metavar="NUMBER", help="The highest one counts.  [default: 0]"
    )
    @click.option("--apply-to", "apply_to", metavar="KIND", help="queues, exchanges, ...")
    @asks_node
    def put(node: Remote, *, name: str, vhost: str, apply_to: str | None, **options: Any) -> int:
        from qq.cli import objects  # noqa: PLC0415

        body = options if apply_to is None else {**options, "apply-to": apply_to}
        return objects.put(node, objects.policy(vhost, name, operator=operator), body)

    put.__doc__ = f"Set {'an operator policy' if operator else 'a policy'}."
    return click.command(name)(put)


command.add_command(_policy("policy", operator=False))
command.add_command(_policy("operator-policy", operator=True))


@command.command("parameter")
@click.option("--component", type=REQUIRED, required=True, metavar="NAME", help="Whose it is.")
@named
@in_vhost
@_value
@asks_node
def parameter(node: Remote, *, component: str, name: str, vhost: str, value: Any) -> int:
    """Set a parameter of a virtual host, of vhost-limits or operator_policy."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.put(node, objects.parameter(vhost, component, name), {"value": value})


@command.command("global-parameter")
@named
@_value
@asks_node
def global_parameter(node: Remote, *, name: str, value: Any) -> int:
    """Set a parameter of the whole cluster."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.put(node, objects.named("global parameter", name, "global-parameters"), {"value": value})


@command.command("vhost-limit")
@named
@in_vhost
@_limit
@asks_node
def vhost_limit(node: Remote, *, name: str, vhost: str, value: int) -> int:
    """Limit what there may be in a virtual host: max-queues, max-connections, ..."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.put(node, objects.limit("vhost", vhost, name), {"value": value})


@command.command("user-limit")
@named
@for_user
@_limit
@asks_node
def user_limit(node: Remote, *, name: str, owner: str, value: int) -> int:
    """Limit what a user may have: max-connections, max-channels, ..."""
    from qq.cli import objects  # noqa: PLC0415

    return objects.put(node, objects.limit("user", owner, name), {"value": value})
