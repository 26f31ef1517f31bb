"""`qq declare`, `qq delete`, `qq purge`: make and remove queues, users, policies and other objects.

Invariant: every command may be repeated. An object that already is as requested is no error. Removing a missing object
is an error, unless `may_be_missing` is set.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.cli.escaping import quoted
from qq.cli.listing import things
from qq.cli.remote import DONE, path_of
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.cli.remote import Remote

DEFAULT_EXCHANGE = "amq.default"
"""Name of the default exchange in paths; its real name is empty."""


class Thing(NamedTuple):
    """An object in a cluster."""

    text: str
    """Kind and name, as messages to the operator show them."""
    path: str
    """Path in the management API."""


def named(kind: str, name: str, *path: str) -> Thing:
    """Describe a named object outside of virtual hosts."""
    return Thing(f"{kind} {quoted(name)}", path_of(*path, name))


def in_vhost(kind: str, vhost: str, name: str, *path: str) -> Thing:
    """Describe a named object in a virtual host."""
    return Thing(f"{kind} {quoted(name)} in {quoted(vhost)}", path_of(*path, vhost, name))


def queue(vhost: str, name: str) -> Thing:
    return in_vhost("queue", vhost, name, "queues")


def exchange(vhost: str, name: str) -> Thing:
    return in_vhost("exchange", vhost, name, "exchanges")


def policy(vhost: str, name: str, *, operator: bool) -> Thing:
    if operator:
        return in_vhost("operator policy", vhost, name, "operator-policies")
    return in_vhost("policy", vhost, name, "policies")


def permission(vhost: str, user: str) -> Thing:
    text = f"permission of user {quoted(user)} in {quoted(vhost)}"
    return Thing(text, path_of("permissions", vhost, user))


def topic_permission(vhost: str, user: str, exchange_name: str | None) -> Thing:
    """Describe the topic permission for an exchange, or all topic permissions of a user in a virtual host."""
    whose = f"of user {quoted(user)} in {quoted(vhost)}"
    if exchange_name is None:
        return Thing(f"topic permissions {whose}", path_of("topic-permissions", vhost, user))
    text = f"topic permission {whose} for exchange {quoted(exchange_name)}"
    return Thing(text, path_of("topic-permissions", vhost, user, exchange_name))


def parameter(vhost: str, component: str, name: str) -> Thing:
    text = f"parameter {quoted(name)} of {quoted(component)} in {quoted(vhost)}"
    return Thing(text, path_of("parameters", component, vhost, name))


def limit(whose: str, owner: str, name: str) -> Thing:
    """Describe a limit of a virtual host or a user."""
    return Thing(f"limit {quoted(name)} of {whose} {quoted(owner)}", path_of(f"{whose}-limits", owner, name))


def put(node: Remote, thing: Thing, body: Any, path: str | None = None) -> int:
    """Create an object, or change it to the requested state. Raises CommandError."""
    answer = node.send("PUT", path or thing.path, body)
    is_new = answer.status == HTTPStatus.CREATED
    print(f"{thing.text}: {'made' if is_new else 'is as wanted'}")
    return 0


def delete(
    node: Remote, thing: Thing, *, query: Mapping[str, str] | None = None, may_be_missing: bool
) -> int:
    """Remove an object. Raises CommandError."""
    missing, expected = ("", (*DONE, HTTPStatus.NOT_FOUND)) if may_be_missing else (thing.text, DONE)
    answer = node.send("DELETE", thing.path, query=query or {}, expected=expected, missing=missing)
    is_gone = answer.status == HTTPStatus.NOT_FOUND
    print(f"{thing.text}: {'is not there' if is_gone else 'removed'}")
    return 0


class WantedBinding(NamedTuple):
    """A binding as the options name it."""

    vhost: str
    source: str
    kind: str
    """Kind of the destination: "queue" or "exchange"."""
    destination: str
    routing_key: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        ends = f"exchange {quoted(self.source)} to {self.kind} {quoted(self.destination)}"
        return f"binding of {ends} in {quoted(self.vhost)} with key {quoted(self.routing_key)}"

    @property
    def place(self) -> tuple[str, ...]:
        """Return the parts of the path of all bindings between these two ends."""
        ends = self.source or DEFAULT_EXCHANGE, self.destination or DEFAULT_EXCHANGE
        return ("bindings", self.vhost, "e", ends[0], self.kind[0], ends[1])


def bind(node: Remote, binding: WantedBinding) -> int:
    """Create a binding. Raises CommandError."""
    body = {"routing_key": binding.routing_key, "arguments": binding.arguments}
    node.send("POST", path_of(*binding.place), body)
    print(f"{binding.text}: is as wanted")
    return 0


def unbind(node: Remote, binding: WantedBinding, *, may_be_missing: bool) -> int:
    """Remove a binding. Raises CommandError."""
    wanted = binding.routing_key, binding.arguments
    for each in things(node, path_of(*binding.place), {}):
        if (each.get("routing_key"), each.get("arguments")) == wanted:
            place = path_of(*binding.place, str(each.get("properties_key")))
            return delete(node, Thing(binding.text, place), may_be_missing=may_be_missing)
    if not may_be_missing:
        raise CommandError(f"there is no {binding.text}")
    print(f"{binding.text}: is not there")
    return 0


def purge(node: Remote, vhost: str, name: str) -> int:
    """Remove all ready messages of a queue. Raises CommandError."""
    thing = queue(vhost, name)
    node.send("DELETE", f"{thing.path}/contents", missing=thing.text)
    print(f"{thing.text}: purged")
    return 0
