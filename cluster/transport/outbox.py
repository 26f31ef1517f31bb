"""The outgoing messages of a group: persist, then send (hazard H1).

Invariant: a message with a sync_point leaves when the journal has synced that far, in the order of the calls. It is
dropped if the epoch of its peer ends before (H4).
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
"""The version of the peer protocol that nodes of release 0.1 speak; it has no introductions."""


class PeerOutbox:
    """The outgoing messages of a group, and those that wait for a sync."""

    def __init__(
        self, links: Links, group_id: int, presence: Presence, congested: Callable[[str], None]
    ) -> None:
        """`congested` is called with each peer whose link has more queued than it takes for now."""
        self._links = links
        self._group_id = group_id
        self._presence = presence
        self._congested = congested
        self._waiting: deque[OutgoingMessage] = deque()
        """The messages that wait for a sync, in the order of the calls."""
        self._encoded: tuple[Message | None, list[Buffer]] = (None, [])
        """The last message and its encoded frame: most appends go to more than one peer."""

    def is_new(self, peer: str) -> bool:
        """Return whether the peer has a link, and speaks a newer protocol than release 0.1."""
        return self._links.connected(peer) and self._links.protocol(peer) > OLDEST_PROTOCOL

    def transmit(self, peer: str, message: Message) -> None:
        """Send a message at once. Drops it if the peer has no link or does not know its type."""
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
        """Send a message at once to every linked node."""
        for peer in self._presence.linked:
            self.transmit(peer, message)

    def send(self, messages: Iterable[OutgoingMessage], synced: int) -> None:
        """Send the waiting messages and these, up to the sync point `synced`; later messages go on waiting."""
        while self._waiting and self._waiting[0].sync_point <= synced:
            _, peer, message = self._waiting.popleft()
            self.transmit(peer, message)
        for outgoing in messages:
            if outgoing.sync_point <= synced:
                self.transmit(outgoing.peer, outgoing.message)
            else:
                self._waiting.append(outgoing)

    def drop(self, peer: str) -> None:
        """Drop the messages that wait for this peer, because its epoch has ended."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.peer != peer)
