"""The members of the cluster as this node sees them: by the newest configuration in its log, and by its links.

When the log has a new newest configuration, all parts that depend on the members must follow it: the directory, links,
peers, the clock, the engine. Any message can bring one, so a caller that acts on a message must call `follow` first.

Invariant: the engine counts a linked node as a member, and sends it entries, only while the newest configuration has
the data directory at the other end of the link.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.raft.messages import (
    AppendResponse,
    BrokerMessage,
    Forward,
    HeartbeatResponse,
    PreVote,
    Query,
    ReadIndexRequest,
    TermConfirmed,
    Vote,
    VoteRequest,
)
from cluster.transport.outbox import OLDEST_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cluster.membership.peer_status import Peers
    from cluster.raft.messages import Message
    from cluster.replica import Replica

log = logging.getLogger(__name__)


_OF_MEMBERS = (
    AppendResponse,
    HeartbeatResponse,
    Vote,
    PreVote,
    Forward,
    Query,
    ReadIndexRequest,
    TermConfirmed,
    BrokerMessage,
)
"""Messages that count only from members."""


class Members:
    """The members of the cluster, and the parts of this node that must follow a new configuration."""

    def __init__(self, replica: Replica, peers: Peers, changed: Callable[[], None]) -> None:
        """`changed` is called after each change of the members."""
        self.name = replica.name
        self.id = replica.member_id
        self.configurations = replica.configurations
        self.linked = replica.linked
        self.known = replica.listed_members
        """The members that links and peers use: `Configurations.known`, as of the last `follow`."""
        self._peers = peers
        self._engine = replica.engine
        self._clock = replica.clock
        self._directory = replica.directory
        self._links = replica.links
        self._runtime = replica.runtime
        self._changed = changed

    @property
    def names(self) -> Sequence[str]:
        """The names of all members, sorted."""
        return self.configurations.membership.members

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of all members except this node, including members whose removal is not committed yet."""
        return self.configurations.others(self.name)

    @property
    def missed(self) -> tuple[str, ...]:
        """The names of the other members that this node does not hear; a live member reports once a second."""
        return tuple(name for name in self.peers if not self.hears(name))

    def hears(self, name: str) -> bool:
        """Return whether this member has a link and has not been silent.

        The process at the other end may be frozen, or the network may drop packets, until TCP gives the connection up.
        """
        return self.linked.is_member(name) and not self._peers.is_silent(name, self._runtime.monotonic())

    def exchanges_with(self, name: str) -> bool:
        """Return whether this node hears a member, and the member does not report that it misses this node."""
        if not self.hears(name):
            return False
        status = self._peers.status(name)
        return status is None or self.name not in status.misses

    @property
    def of_release_0_1(self) -> tuple[str, ...]:
        """The names of the peers whose links show that they run release 0.1, which knows no membership changes."""
        links = self._links
        return tuple(
            name for name in self.peers if links.connected(name) and links.protocol(name) == OLDEST_PROTOCOL
        )

    @property
    def is_alone(self) -> bool:
        """Whether no other member is connected."""
        return not any(map(self._links.connected, self.peers))

    def is_majority(self, names: Iterable[str]) -> bool:
        """Return whether those of these nodes that are linked as members are a majority."""
        return self.configurations.membership.is_majority(list(filter(self.linked.is_member, names)))

    def record_past(self, *, has_past: bool) -> None:
        """Have links tell whether this node relies on its log.

        Then it belongs to a cluster, even if that has no id yet.
        """
        self.configurations.has_past = has_past
        self.configure_links()

    def configure_links(self) -> None:
        """Pass the present configurations on to the links."""
        self._links.configure(self.id, self.configurations)

    def follow(self) -> bool:
        """Apply the newest configuration to all parts of this node; return False if it is applied already."""
        held = self.configurations
        if held.known is self.known:
            return False
        before, self.known = self.known, held.known
        for name in self.known.keys() - before.keys():
            log.info("node %s is a member now", name)
        for name in before.keys() - self.known.keys() - {self.name}:
            log.info("node %s is no member any more", name)
        for name in sorted(self.known.keys() & before.keys() - {self.name}):
            if before[name].id not in (None, self.known[name].id):
                log.warning(
                    "node %s has lost its data directory, or was replaced: it gets everything anew; check whether its "
                    "disk was mounted",
                    name,
                )
        self._directory.record_configuration(held, self._engine.journal)
        self._clock.members = held.newest.clocks(self.name, self.id)
        for name in (before.keys() | held.known.keys()) - held.membership.voters:
            self._clock.forget(name)  # the clocks of a majority of the voters decide the cluster's time
        self._peers.configure(held.directories(self.name), self._runtime.monotonic())
        self.configure_links()
        self.update_engine()
        self._changed()
        return True

    def update_engine(self) -> None:
        """Have the engine count and send entries to the linked members, and no longer to nodes that were removed."""
        linked, now_s = self.linked, self._runtime.monotonic()
        self._engine.follow_configuration(linked.non_members)
        came, went = linked.take_changes()
        for peer in went:
            self._engine.peer_paused(peer)
        for peer in came:
            self._peers.connected(peer, now_s)
            self._engine.peer_connected(peer)

    def accepts_from_non_member(self, message: Message) -> bool:
        """Return whether to read a message of a connected non-member (a node outside of the newest configuration).

        Its acknowledgements, votes and batches do not count, and it must not disturb a leader that this node hears. But
        this log may be behind: the sender may be the leader, or a candidate, by a later configuration.
        """
        if isinstance(message, VoteRequest):
            return not self._engine.hears_leader()
        return not isinstance(message, _OF_MEMBERS)
