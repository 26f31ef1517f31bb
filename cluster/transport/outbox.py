"""Messages on their way out: persist, then speak (hazard H1).

Invariant: a message with a sync_point leaves when the journal has synced that far, in the order in which they were
given; and not at all if the epoch that it was meant for is over (H4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cluster.raft.messages import encode, encode_for_release_0_1
from cluster.transport.handshake import VERSIONS as PROTOCOLS

if TYPE_CHECKING:
    from cluster.raft.messages import Message, OutgoingMessage
    from cluster.runtime.ports import Buffer
    from cluster.transport.connected import Presence
    from cluster.transport.ports import Links

OLDEST_PROTOCOL = PROTOCOLS[0]
"""The version of the protocol that nodes of release 0.1 speak, which know no introductions."""


class PeerOutbox:
    """The messages of one group to its peers."""

    def __init__(
        self, links: Links, group_id: int, presence: Presence, congested: Callable[[str], None]
    ) -> None:
        """`congested` is told of each peer to whose link more is written than it takes for now."""
        self._links = links
        self._group_id = group_id
        self._presence = presence
        self._congested = congested
        self._waiting: deque[OutgoingMessage] = deque()
        """The messages that wait for a sync, in the order in which they were handed over."""
        self._encoded: tuple[Message | None, list[Buffer]] = (None, [])
        """The last message, and its frame: most appends are for more than one peer."""

    def is_new(self, peer: str) -> bool:
        """Whether there is a link with the peer, over which it understands what release 0.1 did not know."""
        return self._links.connected(peer) and self._links.protocol(peer) > OLDEST_PROTOCOL

    def transmit(self, peer: str, message: Message) -> None:
        """Send a message that waits for nothing; dropped if there is no link, or the peer does not know such."""
        if not self._links.connected(peer):
            return
        buffers = self._frame(message) if self.is_new(peer) else encode_for_release_0_1(message)
        if buffers:
            self._links.send(peer, self._group_id, buffers)
        if self._links.congested(peer):
            self._congested(peer)

    def _frame(self, message: Message) -> list[Buffer]:
        if message is not self._encoded[0]:
            self._encoded = message, encode(message)
        return self._encoded[1]

    def transmit_to_all(self, message: Message) -> None:
        """Send a message that waits for nothing to everybody at the other end of a link."""
        for peer in self._presence.linked:
            self.transmit(peer, message)

    def send(self, messages: Iterable[OutgoingMessage], synced: int) -> None:
        """Send what waited and may leave now, then these, except those that wait for more changes than are `synced`."""
        while self._waiting and self._waiting[0].sync_point <= synced:
            _, peer, message = self._waiting.popleft()
            self.transmit(peer, message)
        for outgoing in messages:
            if outgoing.sync_point <= synced:
                self.transmit(outgoing.peer, outgoing.message)
            else:
                self._waiting.append(outgoing)

    def drop(self, peer: str) -> None:
        """Drop the messages that wait to be sent to this peer, because its epoch is over."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.peer != peer)
