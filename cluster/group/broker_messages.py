"""Messages from a node's broker to the broker of a peer that need no entry, because their loss is permitted.

The layer above the group defines the contents. A message is sent once, and messages to a peer arrive in order.

Invariant: a message waits nowhere. The sender learns at once that a link cannot take it, and uses the log instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cluster.raft.messages import BrokerMessage

if TYPE_CHECKING:
    from cluster.membership.view import Members
    from cluster.replica import Replica
    from cluster.runtime.ports import Buffer

Receive = Callable[[str, bytes], None]
"""Takes the name of a peer and its message."""


class BrokerMessages:
    """Sends messages to the brokers of peers, and passes theirs to this node's broker."""

    def __init__(self, replica: Replica, members: Members, since: int) -> None:
        """`since` is the first version of the state at which every program knows these messages."""
        self._configurations = replica.configurations
        self._links = replica.links
        self._members = members
        self._outbox = replica.outbox
        self._since = since
        self._receive: Receive = _ignore

    def set_receiver(self, receive: Receive) -> None:
        """Pass each message of a peer to `receive`, which must be quick."""
        self._receive = receive

    def send(self, peer: str, data: Sequence[Buffer]) -> bool:
        """Send a message to a member, or return False if its link cannot take it now.

        A link that drops all packets may count as connected for long. So it is used only while both ends hear each
        other.
        """
        if not self._configurations.agree_on(self._since):
            return False
        if not self._members.exchanges_with(peer) or self._links.congested(peer):
            return False
        self._outbox.transmit(peer, BrokerMessage(data))
        return True

    def received(self, peer: str, message: BrokerMessage) -> None:
        """Pass a message of a peer to this node's broker."""
        self._receive(peer, b"".join(message.data))


def _ignore(_peer: str, _data: bytes) -> None:
    """Ignore a message: the broker has not begun."""
