"""`qq close`: closes connections of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.cli.escaping import quoted
from qq.cli.remote import path_of

if TYPE_CHECKING:
    from qq.cli.remote import Remote


def close_connection(node: Remote, name: str, reason: str | None) -> int:
    """Close a connection of a client. Raises CommandError."""
    missing = f"connection {quoted(name)}: `qq list connections` shows their names"
    node.send("DELETE", path_of("connections", name), headers=_reason(reason), missing=missing)
    print(f"connection {quoted(name)}: closed")
    return 0


def close_connections(node: Remote, user: str, reason: str | None) -> int:
    """Close all connections of a user. Raises CommandError."""
    node.send("DELETE", path_of("connections", "username", user), headers=_reason(reason))
    print(f"connections of user {quoted(user)}: closed")
    return 0


def _reason(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {"X-Reason": reason}
