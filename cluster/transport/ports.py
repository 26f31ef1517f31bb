"""The ports between a group and its links: the methods of the links, and the events that they report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.configuration.history import Configurations
    from cluster.runtime.ports import Buffer


class LinkEvents(Protocol):
    """The events that links report to a group; all calls are on the event loop."""

    def peer_connected(self, peer: str) -> None:
        """Called when a new epoch begins: no more frames of an earlier connection will arrive."""
        ...

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        """Called when the epoch has ended. `dead`: the peer's host answered that no process listens at its address.

        The links find out about death after the connection was lost, so they call this again with ``dead=True``. They
        do the same for a dead peer that had no connection since this node started.
        """
        ...

    def peer_drained(self, peer: str) -> None:
        """Called when a congested link has room again."""
        ...

    def part_received(self, peer: str) -> None:
        """Called when a part of a frame has arrived: the peer is alive, though the frame takes a while."""
        ...

    def frame_received(self, peer: str, frame: bytes) -> None: ...


class Links(Protocol):
    """An authenticated FIFO stream to each peer."""

    def register(self, group_id: int, events: LinkEvents) -> None:
        """Deliver frames of this group, and connection events, to `events`."""
        ...

    def configure(self, member_id: bytes, configurations: Configurations) -> None:
        """Keep links to the members of these configurations; `member_id` is the id of this node's data directory.

        Other nodes of the cluster may have links, too: a link does not make a node a member.
        """
        ...

    def send(self, peer: str, group_id: int, buffers: Sequence[Buffer]) -> None:
        """Queue a frame on the peer's current epoch, or drop it if there is no epoch. Never raises.

        While the link is not congested, it accepts any frame that `messages.encode` makes.
        """
        ...

    def connected(self, peer: str) -> bool: ...

    def peer_id(self, peer: str) -> bytes:
        """Return the id of a connected peer's data directory; `handshake.NO_ID` from a node of release 0.1."""
        ...

    def peer_process(self, peer: str) -> bytes:
        """Return the random name of a connected peer's process."""
        ...

    def protocol(self, peer: str) -> int:
        """Return the version of the protocol with a connected peer (`handshake.VERSIONS`)."""
        ...

    def congested(self, peer: str) -> bool:
        """Return whether more is queued for the peer than the link's limit; if so, hold back until `peer_drained`."""
        ...
