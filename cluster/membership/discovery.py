"""What nodes tell each other on their links: which data directory each has, and who the members are.

Invariant: who the members are is told to everybody, and believed only where the own log does not tell.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.configuration.configuration import Versions
from cluster.log.hardstate import Standing
from cluster.raft.messages import Introduction, MembersTold

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.configuration import Configuration, PeerAddress
    from cluster.engine.engine import Engine
    from cluster.engine.rejoin import Recovery
    from cluster.membership.joining import Enrolment
    from cluster.membership.view import Members
    from cluster.raft.messages import Message

log = logging.getLogger(__name__)

FORGOTTEN_AFTER_S = 10.0
"""A node that is no member goes by what it was told of its cluster until it has had no link with it for so long."""


class Introductions:
    """What this node tells other nodes about itself and about the members, and what they tell it of the members."""

    def __init__(
        self,
        members: Members,
        address: PeerAddress,
        joins: bool,
        versions: Versions,
        untold: Configuration,
        recovery: Recovery,
        enrolment: Enrolment,
        engine: Engine,
        transmit: Callable[[str, Message], None],
        removed: Callable[[], None],
    ) -> None:
        """`address` is where others reach this node, `versions` are those of the state that its program can run.

        `untold` is what counts as long as neither the log nor anybody else has told who the members are.
        `joins`: the node's settings say that it is to join a cluster, under whatever name.
        `removed` is called when this node is told that it is no member any more.
        """
        self._members = members
        self._address = address
        self._joins = joins
        self._versions = versions
        self._untold = untold
        self._recovery = recovery
        self._enrolment = enrolment
        self._engine = engine
        self._transmit = transmit
        self._removed = removed
        self._told_index = 0
        """The index of the configuration that this node was told last."""
        self._linked_s = 0.0
        """When this node last had a link with a member, or had not been told yet who is one."""

    # Telling

    def introduce(self) -> None:
        """Tell everybody who this node is, because that is not what it was, or it has just been started."""
        self._members.note_past(has_past=self._has_past)
        self._enrolment.introduced(self._members.name, self._own())
        for peer in self._members.presence.linked:
            self._transmit(peer, self._own())

    def greet(self, peer: str) -> None:
        """Tell a node, on its new link, who the members are and who this node is."""
        self._tell_members(peer)
        self._transmit(peer, self._own())

    def tell_members(self) -> None:
        """Tell everybody who the members are."""
        for peer in self._members.presence.linked:
            self._tell_members(peer)

    def _tell_members(self, peer: str) -> None:
        """Tell who the members are, because the log of the other node may not say so.

        A learner is told what is not committed, too: it has promised nothing so far, so it may as well begin.
        """
        held = self._members.configurations
        if self._members.presence.is_member(peer) and peer in held.membership.learners:
            self._transmit(peer, MembersTold(self._engine.term, held.newest_index, held.newest))
        elif held.is_settled:
            self._transmit(peer, MembersTold(self._engine.term, held.committed_index, held.committed))

    @property
    def _has_past(self) -> bool:
        return self._recovery.has_past(self._engine.journal.last_index)

    def _own(self) -> Introduction:
        may_join = not self._has_past or bool(self._members.configurations.cluster)
        return Introduction(
            self._members.id, *self._address, *self._versions, int(may_join), int(self._joins)
        )

    def versions_of(self, name: str) -> Versions | None:
        """Which versions of the state the program of a node can run, as it tells on its link; None if it is not up."""
        if name in self._members.of_release_0_1:
            return Versions(self._versions.low, self._versions.low)
        return self._enrolment.versions_told(name)

    # Being told

    def members_told(self, _peer: str, told: MembersTold) -> None:
        """Learn who the members are, because the own log does not tell, or that this node is none any more."""
        held = self._members.configurations
        if told.configuration.is_removed(self._members.id):
            self._removed()
            return
        if held.newest_index == 0 and told.index > self._told_index:
            self._told_index = told.index
            held.begin(told.configuration)
            self._members.follow()
        if held.told(told.index, told.configuration):
            self._members.tell_links()
        self._recovery.told(told.configuration, told.term, self._engine)

    def look(self, now_s: float) -> None:
        """Forget what this node was told, if it is no member yet and none is heard any more; called once a second.

        That cluster may be gone, and another one be in its place, which this node would refuse as a foreign one. It has
        promised nothing, so it goes on as after a restart.
        """
        told = self._told_index > 0 and self._recovery.standing is Standing.BLANK
        if not told or self._members.presence.members:
            self._linked_s = now_s
        elif now_s - self._linked_s >= FORGOTTEN_AFTER_S:
            log.info(
                "no member of the cluster that this node was told of is heard any more: it looks for any cluster"
            )
            self._told_index = 0
            self._members.configurations.begin(self._untold)
            self._members.follow()
