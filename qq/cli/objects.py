"""Makes and removes objects: queues, users, policies and others.

Invariant: every command may be repeated. An object that already is as requested is no error. Removing a missing object
is an error, unless `may_be_missing` is set.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.cli.client.api import DONE, path_of
from qq.cli.listing import list_objects
from qq.cli.terminal.escaping import quoted
from qq.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.cli.client.remote import Remote

TAGS = ("administrator", "monitoring", "policymaker", "management", "impersonator")
"""Tags of users that give rights, the strongest first."""
_MADE, _AS_WANTED = "made", "is as wanted"
_NO_STATISTICS = {"disable_stats": "true"}
DEFAULT_EXCHANGE = "amq.default"
"""Name of the default exchange in paths; its real name is empty."""


class ApiObject(NamedTuple):
    """An object in a cluster."""

    text: str
    """Kind and name, as messages to the operator show them."""
    path: str
    """Path in the management API."""
    settings_path: str = ""
    """Path of a document that differs after a change of the object; empty for an object that never changes."""


def cluster_object(kind: str, name: str, *path: str) -> ApiObject:
    """Describe a named object outside of virtual hosts."""
    return _changeable(f"{kind} {quoted(name)}", path_of(*path, name))


def vhost_object(kind: str, vhost: str, name: str, *path: str) -> ApiObject:
    """Describe a named object in a virtual host."""
    return ApiObject(f"{kind} {quoted(name)} in {quoted(vhost)}", path_of(*path, vhost, name))


def _changeable(text: str, path: str) -> ApiObject:
    return ApiObject(text, path, path)


def user_object(name: str) -> ApiObject:
    return cluster_object("user", name, "users")


def queue_object(vhost: str, name: str) -> ApiObject:
    return vhost_object("queue", vhost, name, "queues")


def group_object(vhost: str, queue: str, name: str) -> ApiObject:
    text = f"group {quoted(name)} of queue {quoted(queue)} in {quoted(vhost)}"
    return ApiObject(text, path_of("queues", vhost, queue, "groups", name))


def sink_object(vhost: str, name: str) -> ApiObject:
    return vhost_object("sink", vhost, name, "sinks")


def place_of(node: Remote, group: ApiObject) -> dict[str, str]:
    """Return fence and generation of a group, which a change by an operator must name, too. Raises CommandError."""
    document = node.send("GET", group.path, expected=(HTTPStatus.OK,), missing=group.text).document
    found = {name: document.get(name) for name in ("fence", "generation")}
    if not all(isinstance(value, int) for value in found.values()):
        raise node.foreign_answer()
    return {name: str(value) for name, value in found.items()}


def exchange_object(vhost: str, name: str) -> ApiObject:
    return vhost_object("exchange", vhost, name, "exchanges")


def policy_object(vhost: str, name: str, *, operator: bool) -> ApiObject:
    kind, path = ("operator policy", "operator-policies") if operator else ("policy", "policies")
    return _changeable(f"{kind} {quoted(name)} in {quoted(vhost)}", path_of(path, vhost, name))


def permission_object(vhost: str, user: str) -> ApiObject:
    text = f"permission of user {quoted(user)} in {quoted(vhost)}"
    return _changeable(text, path_of("permissions", vhost, user))


def topic_permission_object(vhost: str, user: str, exchange_name: str | None) -> ApiObject:
    """Describe the topic permission for an exchange, or all topic permissions of a user in a virtual host."""
    suffix = f"of user {quoted(user)} in {quoted(vhost)}"
    all_of_user = path_of("topic-permissions", vhost, user)
    if exchange_name is None:
        return _changeable(f"topic permissions {suffix}", all_of_user)
    text = f"topic permission {suffix} for exchange {quoted(exchange_name)}"
    return ApiObject(text, path_of("topic-permissions", vhost, user, exchange_name), all_of_user)


def parameter_object(vhost: str, component: str, name: str) -> ApiObject:
    text = f"parameter {quoted(name)} of {quoted(component)} in {quoted(vhost)}"
    return _changeable(text, path_of("parameters", component, vhost, name))


def limit_object(kind: str, owner: str, name: str) -> ApiObject:
    """Describe a limit of a virtual host or a user (`kind` is "vhost" or "user")."""
    text, all_of_owner = f"limit {quoted(name)} of {kind} {quoted(owner)}", (f"{kind}-limits", owner)
    return ApiObject(text, path_of(*all_of_owner, name), path_of(*all_of_owner))


def warn_of_tags(tags: str) -> None:
    """Say on standard error which tags of a user give no rights: a tag may be any text, so a typo is no error."""
    for tag in map(str.strip, tags.split(",")):
        if tag and tag not in TAGS:
            meant = "".join(f"; did you mean {known}?" for known in get_close_matches(tag, TAGS, 1))
            print(f"tag {quoted(tag)} gives no rights, unlike {', '.join(TAGS)}{meant}", file=sys.stderr)


def put(
    node: Remote,
    target: ApiObject,
    body: Any,
    path: str | None = None,
    *,
    query: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Create an object, or change it to the requested state, and say which of the two. Raises CommandError."""
    before = settings_of(node, target)
    answer = node.send("PUT", path or target.path, body, query=query)
    if answer.status == HTTPStatus.CREATED:
        outcome = _MADE
    else:
        outcome = _AS_WANTED if settings_of(node, target) == before else "changed"
    print(f"{target.text}: {outcome}")
    return 0


def settings_of(node: Remote, target: ApiObject) -> Any:
    """Return the document with the settings of an object, or `None` if the object is missing. Raises CommandError.

    It is also `None` if the login is refused: a change of the caller's own user has succeeded then.
    """
    if not target.settings_path:
        return None
    expected = HTTPStatus.OK, HTTPStatus.NOT_FOUND, HTTPStatus.UNAUTHORIZED
    answer = node.send("GET", target.settings_path, query=_NO_STATISTICS, expected=expected, kind=object)
    return answer.document if answer.status == HTTPStatus.OK else None


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
    is_new = _find(node, binding) is None
    node.send("POST", path_of(*binding.path_parts), body)
    print(f"{binding.text}: {_MADE if is_new else _AS_WANTED}")
    return 0


def unbind(node: Remote, binding: BindingObject, *, may_be_missing: bool) -> int:
    """Remove a binding. Raises CommandError."""
    found = _find(node, binding)
    if found is not None:
        path = path_of(*binding.path_parts, str(found.get("properties_key")))
        return delete(node, ApiObject(binding.text, path), may_be_missing=may_be_missing)
    if not may_be_missing:
        raise CommandError(f"there is no {binding.text}")
    print(f"{binding.text}: is not there")
    return 0


def _find(node: Remote, binding: BindingObject) -> dict[str, Any] | None:
    """Return the binding's document, or `None` if there is no such binding. Raises CommandError."""
    wanted = binding.routing_key, binding.arguments
    for each in list_objects(node, path_of(*binding.path_parts), {}):
        if (each.get("routing_key"), each.get("arguments")) == wanted:
            return each
    return None
