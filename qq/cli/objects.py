"""Makes and removes objects: queues, users, policies and others.

Invariant: every command may be repeated. An object that already is as requested is no error. Removing a missing object
is an error, unless `may_be_missing` is set.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.cli.api import DONE, path_of
from qq.cli.escaping import quoted
from qq.cli.listing import list_objects
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.cli.remote import Remote

DEFAULT_EXCHANGE = "amq.default"
"""Name of the default exchange in paths; its real name is empty."""


class ApiObject(NamedTuple):
    """An object in a cluster."""

    text: str
    """Kind and name, as messages to the operator show them."""
    path: str
    """Path in the management API."""


def cluster_object(kind: str, name: str, *path: str) -> ApiObject:
    """Describe a named object outside of virtual hosts."""
    return ApiObject(f"{kind} {quoted(name)}", path_of(*path, name))


def vhost_object(kind: str, vhost: str, name: str, *path: str) -> ApiObject:
    """Describe a named object in a virtual host."""
    return ApiObject(f"{kind} {quoted(name)} in {quoted(vhost)}", path_of(*path, vhost, name))


def queue_object(vhost: str, name: str) -> ApiObject:
    return vhost_object("queue", vhost, name, "queues")


def exchange_object(vhost: str, name: str) -> ApiObject:
    return vhost_object("exchange", vhost, name, "exchanges")


def policy_object(vhost: str, name: str, *, operator: bool) -> ApiObject:
    if operator:
        return vhost_object("operator policy", vhost, name, "operator-policies")
    return vhost_object("policy", vhost, name, "policies")


def permission_object(vhost: str, user: str) -> ApiObject:
    text = f"permission of user {quoted(user)} in {quoted(vhost)}"
    return ApiObject(text, path_of("permissions", vhost, user))


def topic_permission_object(vhost: str, user: str, exchange_name: str | None) -> ApiObject:
    """Describe the topic permission for an exchange, or all topic permissions of a user in a virtual host."""
    suffix = f"of user {quoted(user)} in {quoted(vhost)}"
    if exchange_name is None:
        return ApiObject(f"topic permissions {suffix}", path_of("topic-permissions", vhost, user))
    text = f"topic permission {suffix} for exchange {quoted(exchange_name)}"
    return ApiObject(text, path_of("topic-permissions", vhost, user, exchange_name))


def parameter_object(vhost: str, component: str, name: str) -> ApiObject:
    text = f"parameter {quoted(name)} of {quoted(component)} in {quoted(vhost)}"
    return ApiObject(text, path_of("parameters", component, vhost, name))


def limit_object(kind: str, owner: str, name: str) -> ApiObject:
    """Describe a limit of a virtual host or a user (`kind` is "vhost" or "user")."""
    return ApiObject(
        f"limit {quoted(name)} of {kind} {quoted(owner)}", path_of(f"{kind}-limits", owner, name)
    )


def put(node: Remote, target: ApiObject, body: Any, path: str | None = None) -> int:
    """Create an object, or change it to the requested state. Raises CommandError."""
    answer = node.send("PUT", path or target.path, body)
    is_new = answer.status == HTTPStatus.CREATED
    print(f"{target.text}: {'made' if is_new else 'is as wanted'}")
    return 0


def delete(
    node: Remote, target: ApiObject, *, query: Mapping[str, str] | None = None, may_be_missing: bool
) -> int:
    """Remove an object. Raises CommandError."""
    missing, expected = ("", (*DONE, HTTPStatus.NOT_FOUND)) if may_be_missing else (target.text, DONE)
    answer = node.send("DELETE", target.path, query=query or {}, expected=expected, missing=missing)
    is_gone = answer.status == HTTPStatus.NOT_FOUND
    print(f"{target.text}: {'is not there' if is_gone else 'removed'}")
    return 0


class BindingObject(NamedTuple):
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
    def path_parts(self) -> tuple[str, ...]:
        """Return the parts of the path of all bindings between these two ends."""
        ends = self.source or DEFAULT_EXCHANGE, self.destination or DEFAULT_EXCHANGE
        return ("bindings", self.vhost, "e", ends[0], self.kind[0], ends[1])


def bind(node: Remote, binding: BindingObject) -> int:
    """Create a binding. Raises CommandError."""
    body = {"routing_key": binding.routing_key, "arguments": binding.arguments}
    node.send("POST", path_of(*binding.path_parts), body)
    print(f"{binding.text}: is as wanted")
    return 0


def unbind(node: Remote, binding: BindingObject, *, may_be_missing: bool) -> int:
    """Remove a binding. Raises CommandError."""
    wanted = binding.routing_key, binding.arguments
    for each in list_objects(node, path_of(*binding.path_parts), {}):
        if (each.get("routing_key"), each.get("arguments")) == wanted:
            path = path_of(*binding.path_parts, str(each.get("properties_key")))
            return delete(node, ApiObject(binding.text, path), may_be_missing=may_be_missing)
    if not may_be_missing:
        raise CommandError(f"there is no {binding.text}")
    print(f"{binding.text}: is not there")
    return 0
