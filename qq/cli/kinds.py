"""The kinds of objects that `qq list` lists."""

from __future__ import annotations

from typing import NamedTuple


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

    def path(self, vhost: str | None) -> tuple[str, ...]:
        """Return the parts of the path for a virtual host, or for all."""
        if vhost is None or self.of_vhost is None:
            return (self.name,)
        return tuple(vhost if part == "{}" else part for part in self.of_vhost)


_POLICY = ("vhost", "name", "pattern", "apply-to", "priority", "definition")

KINDS = (
    Kind(
        "queues",
        (
            "vhost",
            "name",
            "type",
            "messages_ready",
            "messages_unacknowledged",
            "messages",
            "consumers",
            "state",
        ),
        ("queues", "{}"),
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
        ("name", "user", "vhost", "node", "state", "channels", "peer_host", "ssl"),
        ("vhosts", "{}", "connections"),
    ),
    Kind(
        "channels",
        (
            "name",
            "user",
            "vhost",
            "node",
            "state",
            "consumer_count",
            "prefetch_count",
            "messages_unacknowledged",
        ),
        ("vhosts", "{}", "channels"),
    ),
    Kind(
        "consumers",
        (
            "queue.vhost",
            "queue.name",
            "consumer_tag",
            "channel_details.name",
            "ack_required",
            "prefetch_count",
            "active",
        ),
        ("consumers", "{}"),
        has_names=False,
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
    ),
    Kind(
        "topic-permissions",
        ("vhost", "user", "exchange", "write", "read"),
        ("vhosts", "{}", "topic-permissions"),
        has_names=False,
    ),
    Kind("policies", _POLICY, ("policies", "{}")),
    Kind("operator-policies", _POLICY, ("operator-policies", "{}")),
    Kind("parameters", ("vhost", "component", "name", "value")),
    Kind("global-parameters", ("name", "value")),
    Kind(
        "nodes",
        ("name", "running", "being_drained", "uptime", "mem_used", "mem_alarm", "disk_free", "fd_used"),
    ),
)
