"""Permissions that commands over HTTP need.

Invariant: permissions are checked before a command is submitted; the log contains no permission checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from qq.machine.protocol import commands as c
from qq.management.reports.messages import AllPublications, NewMessage
from qq.management.reports.sinks import PublishedKeys

if TYPE_CHECKING:
    from qq.machine.protocol.commands import Declaration, GroupCommand
    from qq.sessions.access import Access

    CheckedCommand: TypeAlias = (
        Declaration
        | c.Get
        | NewMessage
        | AllPublications
        | PublishedKeys
        | c.BeginMove
        | c.BeginTextMove
        | GroupCommand
    )


def check(access: Access, command: CheckedCommand) -> None:
    """Raise AccessRefused unless the session's user may do everything that the command does."""
    match command:
        case NewMessage():
            access.check("write", "exchange", command.exchange)
            access.publish_keys(command.exchange, [command.routing_key, *_more_keys(command)])
        case AllPublications():
            access.check("write", "exchange", command.exchange)
            access.publish_all_keys(command.exchange)
        case PublishedKeys():
            access.check("write", "exchange", command.exchange)
            access.publish_keys(command.exchange, command.routing_keys)
        case c.DeclareQueue():
            access.declare_queue(command.name, command.arguments, passive=False)
        case c.DeleteQueue():
            access.check("configure", "queue", command.name)
        case c.PurgeQueue():
            access.check("read", "queue", command.name)
        case c.BeginMove() | c.BeginTextMove():
            access.check("read", "queue", command.source)
            if command.destination:
                access.check("write", "queue", command.destination)
        case c.OpenGroup() | c.CloseGroup():
            access.check("configure", "queue", command.queue)
        case c.LeaseMessages() | c.CommitLeases() | c.ReleaseLease():
            access.check("read", "queue", command.queue)
        case c.Get():
            access.check("read", "queue", command.queue)
        case c.BindQueue() | c.UnbindQueue():
            access.bind("queue", command.queue, command.exchange, command.routing_key)
        case c.BindExchange() | c.UnbindExchange():
            access.bind("exchange", command.destination, command.source, command.routing_key)
        case c.DeclareExchange():
            access.declare_exchange(command.name, command.arguments, passive=False)
        case c.DeleteExchange():
            access.delete_exchange(command.name)


def _more_keys(publication: NewMessage) -> list[str]:
    """Return the routing keys in a message's headers."""
    headers = publication.properties.headers or {}
    lists = [keys for name in ("CC", "BCC") if isinstance(keys := headers.get(name), list)]
    return [key for keys in lists for key in keys if isinstance(key, str)]
