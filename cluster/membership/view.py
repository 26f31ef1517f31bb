"""Who the members are, by the log and at the other ends of the links, as one of the nodes sees them.

Whenever the log has another newest configuration, everything that goes by the members is told: the directory, links,
peers, the clock, the engine. That may come with any message, so whoever acts on one asks `follow` first.

Invariant: the engine counts and feeds a node as a member only while the newest configuration has the directory that its
link leads to.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.raft.messages import Appended, Forward, Hearing, Inquiry, PreVote, Vote, VoteRequest
from cluster.transport.outbox import OLDEST_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cluster.configuration.configuration import Member
    from cluster.configuration.history import Configurations
    from cluster.engine.engine import Engine
    from cluster.membership.peer_status import Peers
    from cluster.raft.cluster_clock import ClusterClock
    from cluster.raft.messages import Message
    from cluster.runtime.ports import Runtime
    from cluster.storage.directory import GroupDirectory
    from cluster.transport.connected import Presence
    from cluster.transport.ports import Links

log = logging.getLogger(__name__)


class Members:
    """The members of the cluster, as this node knows them."""

    def __init__(
        self,
        name: str,
        member_id: bytes,
        configurations: Configurations,
        presence: Presence,
        peers: Peers,
        engine: Engine,
        clock: ClusterClock,
        directory: GroupDirectory,
        links: Links,
        runtime: Runtime,
        known: Mapping[str, Member],
        changed: Callable[[], None],
    ) -> None:
        """`name` and `member_id` are those of this node's data directory.

        `known` are the members before anything was read from the log. `changed` is called after each change.
        """
        self.name = name
        self.id = member_id
        self.configurations = configurations
        self.presence = presence
        self.known = known
        """The members that links and peers go by: `Configurations.known`, as of the last `follow`."""
        self._peers = peers
        self._engine = engine
        self._clock = clock
        self._directory = directory
        self._links = links
        self._runtime = runtime
        self._changed = changed

    @property
    def names(self) -> Sequence[str]:
        """The names of all members, sorted."""
        return self.configurations.membership.members

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of the others, also of such as are about to be removed."""
        return self.configurations.others(self.name)

    @property
    def missed(self) -> tuple[str, ...]:
        """The names of the other members that are not heard, as they would be once a second."""
        return tuple(name for name in self.peers if not self.hears(name))

    def hears(self, name: str) -> bool:
        """Whether there is a link with this other member, and it has said anything of late.

        The process at the other end may be frozen, or the network let nothing through, for as long as TCP puts up with
        that.
        """
        return self.presence.is_member(name) and not self._peers.is_silent(name, self._runtime.monotonic())

    @property
    def of_release_0_1(self) -> tuple[str, ...]:
        """The names of the others whose program is release 0.1, as their links tell; it knows of no changes."""
        links = self._links
        return tuple(
            name for name in self.peers if links.connected(name) and links.protocol(name) == OLDEST_PROTOCOL
        )

    @property
    def is_alone(self) -> bool:
        """Whether no other member is connected."""
        return not any(map(self._links.connected, self.peers))

    def is_majority(self, names: Iterable[str]) -> bool:
        """Whether those of these nodes that are there as members are a majority."""
        return self.configurations.membership.is_majority(list(filter(self.presence.is_member, names)))

    def note_past(self, *, has_past: bool) -> None:
        """Have links tell whether this node relies on its log: then it is of a cluster, also if that has no id."""
        self.configurations.has_past = has_past
        self.tell_links()

    def tell_links(self) -> None:
        """Have links go by the configurations as they are now."""
        self._links.configure(self.id, self.configurations)

    def follow(self) -> bool:
        """Make the newest configuration count everywhere; False if it does already."""
        held = self.configurations
        if held.known is self.known:
            return False
        before, self.known = self.known, held.known
        for name in self.known.keys() - before.keys():
            log.info("node %s is a member now", name)
        for name in before.keys() - self.known.keys() - {self.name}:
            log.info("node %s is no member any more", name)
        self._directory.note_configuration(held, self._engine.journal)
        self._clock.members = held.newest.clocks(self.name, self.id)
        for name in (before.keys() | held.known.keys()) - held.membership.voters:
            self._clock.forget(name)  # a majority of the voters decides what time it is
        self._peers.configure(held.directories(self.name), self._runtime.monotonic())
        self.tell_links()
        self.meet()
        self._changed()
        return True

    def meet(self) -> None:
        """Count and feed those who are at the other ends of the links as members, and nobody else."""
        presence, now_s = self.presence, self._runtime.monotonic()
        self._engine.follow_configuration(presence.guests)
        came, went = presence.look()
        for peer in went:
            self._engine.hold_back(peer)
        for peer in came:
            self._peers.connected(peer, now_s)
            self._engine.peer_connected(peer)

    def hears_guest(self, message: Message) -> bool:
        """Whether a message matters although its sender is no member by the newest configuration here.

        Its promises count for nothing, and it does not disturb a leader that is heard. But this log may be behind: the
        sender may lead, or be about to.
        """
        if isinstance(message, VoteRequest):
            return not self._engine.hears_leader()
        return not isinstance(message, Appended | Hearing | Vote | PreVote | Forward | Inquiry)
