"""The kinds of objects that `qq list` lists."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.cli.terminal.output import duration
from qq.diagnosis.words import size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Kind(NamedTuple):
    """A kind of object: its columns and its path in the management API."""

    name: str
    """Plural name of the kind, as in the command."""
    columns: tuple[str, ...]
    """Columns shown by default."""
    of_vhost: tuple[str, ...] | None = None
    """Path of the objects of a virtual host, with `{}` for its name; `None` if the kind has no virtual host."""
    has_names: bool = True
    """Whether the list can be filtered by name."""
    of_user: tuple[str, ...] | None = None
    """Path of the objects of a user, with `{}` for its name; `None` if the list has none."""
    titles: Mapping[str, str] = MappingProxyType({})
    """Shorter titles of columns in a table."""
    texts: Mapping[str, Callable[[Any], str]] = MappingProxyType({})
    """How people read the values of columns."""
    among: str = ""
    """The larger list that contains the objects, if they have no list of their own."""
    field: str = ""
    """A field that only these objects of the larger list have."""

    @property
    def head(self) -> tuple[str, ...]:
        """Return the titles of the default columns."""
        return tuple(self.titles.get(column, column) for column in self.columns)

    def path(self, vhost: str | None, user: str | None = None) -> tuple[str, ...]:
        """Return the parts of the path for a user, for a virtual host, or for all."""
        if user is not None and self.of_user is not None:
            return tuple(user if part == "{}" else part for part in self.of_user)
        if vhost is None or self.of_vhost is None:
            return (self.among or self.name,)
        return tuple(vhost if part == "{}" else part for part in self.of_vhost)


_POLICY = ("vhost", "name", "pattern", "apply-to", "priority", "definition")

KINDS = (
    Kind(
        "queues",
        (
            "vhost",
            "name",
            "messages_ready",
            "messages_unacknowledged",
            "consumers",
            "state",
            "type",
            "messages",
        ),
        ("queues", "{}"),
        titles={"messages_ready": "ready", "messages_unacknowledged": "unacked"},
    ),
    Kind(
        "exchanges",
        ("vhost", "name", "type", "durable", "auto_delete", "internal"),
        ("exchanges", "{}"),
    ),
    Kind(
        "bindings",
        ("vhost", "source", "destination_type", "destination", "routing_key", "arguments"),
        ("bindings", "{}"),
        has_names=False,
    ),
    Kind(
        "connections",
        ("user_provided_name", "name", "user", "vhost", "node", "state", "protocol", "channels", "ssl"),
        ("vhosts", "{}", "connections"),
        titles={"user_provided_name": "client"},
    ),
    Kind(
        "channels",
        (
            "connection_details.user_provided_name",
            "name",
            "user",
            "vhost",
            "messages_unacknowledged",
            "consumer_count",
            "prefetch_count",
            "state",
            "node",
        ),
        ("vhosts", "{}", "channels"),
        titles={
            "connection_details.user_provided_name": "client",
            "messages_unacknowledged": "unacked",
            "consumer_count": "consumers",
            "prefetch_count": "prefetch",
        },
    ),
    Kind(
        "links",
        (
            "connection_details.user_provided_name",
            "link_name",
            "link_role",
            "link_address",
            "link_credit",
            "messages_unacknowledged",
            "messages_unconfirmed",
            "vhost",
            "state",
            "connection_details.name",
            "node",
        ),
        ("vhosts", "{}", "channels"),
        has_names=False,
        titles={
            "connection_details.user_provided_name": "client",
            "link_name": "link",
            "link_role": "role",
            "link_address": "address",
            "link_credit": "credit",
            "messages_unacknowledged": "unacked",
            "messages_unconfirmed": "unconfirmed",
            "connection_details.name": "connection",
        },
        among="channels",
        field="link_name",
    ),
    Kind(
        "consumers",
        (
            "queue.vhost",
            "queue.name",
            "channel_details.user_provided_name",
            "consumer_tag",
            "channel_details.name",
            "ack_required",
            "prefetch_count",
            "active",
        ),
        ("consumers", "{}"),
        has_names=False,
        titles={
            "queue.vhost": "vhost",
            "queue.name": "queue",
            "channel_details.user_provided_name": "client",
            "channel_details.name": "channel",
            "prefetch_count": "prefetch",
        },
    ),
    Kind(
        "groups",
        (
            "vhost",
            "queue",
            "name",
            "open_leases",
            "messages_leased",
            "lag.messages",
            "lag.age_ms",
            "idle_ms",
            "owner",
            "fence",
        ),
        ("groups", "{}"),
        titles={
            "open_leases": "leases",
            "messages_leased": "leased",
            "lag.messages": "lag",
            "lag.age_ms": "age",
            "idle_ms": "idle",
        },
        texts={"lag.age_ms": duration, "idle_ms": duration},
    ),
    Kind(
        "sinks",
        (
            "vhost",
            "name",
            "attempts",
            "messages_staged",
            "bytes_staged",
            "age_ms",
            "idle_ms",
            "committed",
            "user",
        ),
        ("sinks", "{}"),
        titles={"messages_staged": "staged", "bytes_staged": "bytes", "age_ms": "age", "idle_ms": "idle"},
        texts={"age_ms": duration, "idle_ms": duration},
    ),
    Kind("users", ("name", "tags", "limits")),
    Kind(
        "vhosts", ("name", "description", "tags", "default_queue_type", "messages", "protected_from_deletion")
    ),
    Kind(
        "permissions",
        ("vhost", "user", "configure", "write", "read"),
        ("vhosts", "{}", "permissions"),
        has_names=False,
        of_user=("users", "{}", "permissions"),
    ),
    Kind(
        "topic-permissions",
        ("vhost", "user", "exchange", "write", "read"),
        ("vhosts", "{}", "topic-permissions"),
        has_names=False,
        of_user=("users", "{}", "topic-permissions"),
    ),
    Kind("policies", _POLICY, ("policies", "{}")),
    Kind("operator-policies", _POLICY, ("operator-policies", "{}")),
    Kind("parameters", ("vhost", "component", "name", "value")),
    Kind("global-parameters", ("name", "value")),
    Kind(
        "nodes",
        ("name", "running", "being_drained", "uptime", "mem_used", "mem_alarm", "disk_free", "fd_used"),
        titles={
            "being_drained": "drained",
            "mem_used": "memory",
            "mem_alarm": "alarm",
            "disk_free": "disk free",
        },
        texts={"uptime": duration, "mem_used": size, "disk_free": size},
    ),
    Kind(
        "shovels",
        ("vhost", "name", "state", "node", "src_queue", "src_uri", "dest_queue", "dest_uri", "reason"),
        ("shovels", "{}"),
    ),
)
