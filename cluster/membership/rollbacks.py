"""Finds members whose data directories were put back as they were earlier, such as a snapshot of a virtual machine.

The files of such a directory are undamaged, so its node cannot see by itself that it has forgotten acknowledgements and
votes. The other nodes remember them (`cluster/raft/promises.py`):

- On each new link a node tells its peer the promises of the peer's earlier processes (`Memory`). The peer compares them
  with its term and log at its start.
- A node that receives a status with less than the sender has promised answers with a certain `Memory`.

A node that is told so becomes a learner until a leader has sent it everything (`cluster/engine/rejoin.py`).

Invariant: a legitimate cut of the log by a later leader never counts as a rollback.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.hardstate import VoterStatus
from cluster.raft.cluster_clock import bounded
from cluster.raft.messages import Append, AppendResponse, Memory, Status, Vote, VoteRequest
from cluster.raft.promises import DirectoryPromises, Promise, Promises

if TYPE_CHECKING:
    from cluster.membership.view import Members
    from cluster.raft.messages import Message
    from cluster.replica import Replica

log = logging.getLogger(__name__)


class Rollbacks:
    """Remembers the promises of the linked members, and handles the memories that they send."""

    def __init__(self, replica: Replica, members: Members) -> None:
        self._members = members
        self._promises = Promises()
        self._linked: dict[str, DirectoryPromises] = {}
        """The promises of the directory of each linked member that has promised something, by name."""
        self._links = replica.links
        self._engine = replica.engine
        self._rejoin = replica.rejoin
        self._runtime = replica.runtime
        self._outbox = replica.outbox
        self._logged: dict[str, bytes] = {}
        """The process of each rolled back member that was logged, by name."""

    def link_began(self, peer: str) -> None:
        """Tell a member on its new link the promises of its earlier processes."""
        self._linked.clear()  # records of removed members are forgotten here
        if self._members.linked.is_member(peer):
            self._promises.forget_all_but(self._member_ids)
            self._tell(peer, self._promises_of(peer).before, is_certain=False)

    @property
    def _member_ids(self) -> frozenset[bytes | None]:
        return frozenset(member.id for member in self._members.configurations.known.values())

    def _tell(self, peer: str, promise: Promise, *, is_certain: bool) -> None:
        if self._outbox.reports_losses:
            self._outbox.transmit(peer, Memory(*promise, int(is_certain)))

    def heard(self, peer: str, message: Message) -> None:
        """Record the promise in a message of a linked member."""
        # Each client message causes such messages, so the usual case is a comparison.
        index = 0
        if not isinstance(message, Append):
            if isinstance(message, AppendResponse):
                index = message.next_index - 1 if message.success else 0
            elif isinstance(message, Status):
                self._check(peer, message)
                index = message.vouched_index
            elif not isinstance(message, Vote | VoteRequest):
                return
        known = self._linked.get(peer)
        if known is None:
            known = self._linked[peer] = self._promises_of(peer)
        known.record(message.term, index)

    def _promises_of(self, peer: str) -> DirectoryPromises:
        """Return the promises of a linked member's directory."""
        return self._promises.begin(self._links.peer_id(peer), self._links.peer_process(peer))

    def _check(self, peer: str, status: Status) -> None:
        """Tell a voter that its status shows less than it has promised."""
        promises = self._promises_of(peer)
        promise, shown = promises.latest, Promise(status.term, status.last_index)
        if status.voter_status != VoterStatus.VOTER or shown >= promise:
            return
        process = self._links.peer_process(peer)
        if self._logged.get(peer) != process and not promises.is_outdated:
            self._logged[peer] = process
            log.warning(
                "the data directory of node %s is older than its promises: it is in term %d with %d entries, and this "
                "node remembers entry %d of term %d; the node gets no vote until it has everything again",
                peer,
                *shown,
                promise.index,
                promise.term,
            )
        self._tell(peer, promise, is_certain=True)

    def memory_received(self, peer: str, memory: Memory) -> None:
        """Give up this node's vote if its directory holds less than a peer remembers of it."""
        # A node that has just started does not know the cluster's time yet.
        self._rejoin.record_memory(peer, memory, self._engine, bounded(self._runtime.wall_ms()))
