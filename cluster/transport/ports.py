"""What a group needs from its links to the peers, and what it hears from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.configuration.history import Configurations
    from cluster.runtime.ports import Buffer


class LinkEvents(Protocol):
    """What a group hears from its links; all calls are on the loop."""

    def peer_connected(self, peer: str) -> None:
        """A new epoch begins: nothing of an earlier connection will arrive any more."""
        ...

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        """The epoch has ended. `dead`: the peer's host answered that no such process listens any more.

        That is learnt after the connection was lost, so this is called again then with ``dead=True``, and so for a peer
        that was not there when this node started.
        """
        ...

    def peer_drained(self, peer: str) -> None:
        """A congested link has room again."""
        ...

    def part_received(self, peer: str) -> None:
        """A part of a frame has arrived: the peer is alive, though the frame takes a while."""
        ...

    def frame_received(self, peer: str, frame: bytes) -> None: ...


class Links(Protocol):
    """One authenticated FIFO stream per peer."""

    def register(self, group_id: int, events: LinkEvents) -> None:
        """Deliver frames of this group, and connection events, to `events`."""
        ...

    def configure(self, member_id: bytes, configurations: Configurations) -> None:
        """Keep links to the members by these configurations; `member_id` is the id of this node's data directory.

        Other nodes of the cluster may have links, too: a link says nothing about who is a member.
        """
        ...

    def send(self, peer: str, group_id: int, buffers: Sequence[Buffer]) -> None:
        """Queue one frame on the peer's current epoch; dropped if there is none. Never raises.

        A frame of any size that `envelope.encode` makes is taken as long as the link is not congested.
        """
        ...

    def connected(self, peer: str) -> bool: ...

    def peer_id(self, peer: str) -> bytes:
        """The id of the data directory of a connected peer; `handshake.NO_ID` from a node of release 0.1."""
        ...

    def protocol(self, peer: str) -> int:
        """The version of the protocol that is spoken with a connected peer (`handshake.VERSIONS`)."""
        ...

    def congested(self, peer: str) -> bool:
        """Whether more is queued for the peer than the link's limit; if so, hold back until `peer_drained`."""
        ...
