"""Reads without an entry: learn the index that this node must apply to see all entries committed before (ReadIndex).

The node asks the leader for the index (`cluster/raft/read_index.py`), and the read is up to date when this node has
applied that entry. Reads that begin in the same pass of the event loop share a request.

Invariant: a read is answered once: `done` is called when this node has applied the read index, or `failed` when no
answer will come. After `failed` the caller uses an entry instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cluster.raft.messages import ReadIndexAnswer, ReadIndexRequest, TermCheck, TermConfirmed
from cluster.raft.read_index import ConfirmedRead, ReadRequest, ReadRounds

if TYPE_CHECKING:
    from cluster.membership.leadership import Leadership
    from cluster.replica import Replica

PATIENCE_BEATS = 10
"""Heartbeat intervals after which an unanswered request fails. A link reports its loss, so only a leader that has just
stepped down, or a majority that does not answer, leaves a request without an answer."""
NOT_POSSIBLE = 0
"""In place of a read index: the leader cannot confirm its term, because too few members have links."""


class _Read(NamedTuple):
    done: Callable[[], None]
    failed: Callable[[], None]


class _SentReads(NamedTuple):
    reads: Sequence[_Read]
    beat: int


class Reads:
    """The reads of this node, and its answers to the reads of peers."""

    def __init__(self, replica: Replica, leadership: Leadership, since: int) -> None:
        """`since` is the first version of the state at which every program knows these messages."""
        self._name = replica.name
        self._configurations = replica.configurations
        self._journal = replica.journal
        self._engine = replica.engine
        self._links = replica.links
        self._linked = replica.linked
        self._outbox = replica.outbox
        self._turns = replica.turns
        self._runtime = replica.runtime
        self._leadership = leadership
        self._since = since
        self._new: list[_Read] = []
        """Reads of this pass of the event loop, which the next request is for."""
        self._sent: dict[int, _SentReads] = {}
        """Reads that wait for the leader's answer, by the number of their request."""
        self.unapplied: deque[tuple[int, Sequence[_Read]]] = deque()
        """Reads that wait until this node has applied an index, with that index."""
        self._last_number = 0
        self._beat = 0
        self._rounds = ReadRounds(replica.name, replica.configurations)

    # Reads of this node

    @property
    def are_possible(self) -> bool:
        """Whether a read needs no entry now: there is a leader with a link, and every program knows the messages."""
        leader = self._leadership.leader_term.leader
        if leader is None or not self._turns.is_on or not self._configurations.agree_on(self._since):
            return False
        return leader == self._name or (self._links.connected(leader) and not self._links.congested(leader))

    def read(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Call `done` when this node has applied all entries that were committed before this call, else `failed`."""
        self._new.append(_Read(done, failed))
        if len(self._new) == 1:
            self._runtime.call_soon(self._request)

    def _request(self) -> None:
        reads, self._new = self._new, []
        leader, term = self._leadership.leader_term
        leads = leader == self._name
        if leader is None or not self.are_possible or (leads and not self._engine.is_leader):
            _fail(reads)
            return
        self._last_number += 1
        number = self._last_number
        self._sent[number] = _SentReads(reads, self._beat)
        if leads:
            self._begin_round(ReadRequest(self._name, number), self._engine.applied_index, confirms=True)
        else:
            applied, confirms = self._engine.applied_index, int(self._engine.may_vote)
            self._outbox.transmit(leader, ReadIndexRequest(term, number, applied, confirms))

    def answered(self, peer: str, answer: ReadIndexAnswer) -> None:
        """Take the leader's answer to a request of this node."""
        if peer == self._leadership.leader_term.leader and answer.term == self._leadership.leader_term.term:
            self._answered(answer.number, answer.read_index)

    def _answered(self, number: int, read_index: int) -> None:
        sent = self._sent.pop(number, None)
        if sent is None:
            return
        if read_index == NOT_POSSIBLE:
            _fail(sent.reads)
            return
        self.unapplied.append((read_index, sent.reads))
        self.applied(self._engine.applied_index)

    def applied(self, index: int) -> None:
        """Call `done` for the reads that waited for this index."""
        waiting = self.unapplied
        while waiting and waiting[0][0] <= index:
            for read in waiting.popleft()[1]:
                read.done()

    # As leader

    def requested(self, peer: str, message: ReadIndexRequest) -> None:
        """Answer a peer's request, at once or when a majority has confirmed this leader's term."""
        if self._engine.is_leader and message.term == self._engine.term:
            request = ReadRequest(peer, message.number)
            self._begin_round(request, message.applied_index, confirms=bool(message.confirms))

    def _begin_round(self, request: ReadRequest, applied_index: int, *, confirms: bool) -> None:
        index = self._read_index()
        if request.reader != self._name and index > applied_index:
            self._engine.notify_soon([request.reader])
            self._turns.request()
        if self._rounds.begin(request, index, confirms=confirms):
            self._answer(ConfirmedRead(request, index))
        elif self._configurations.membership.is_majority([self._name, *self._linked.members]):
            self._check_term(self._linked.members)
        else:
            self._answer(ConfirmedRead(request, NOT_POSSIBLE))

    def _read_index(self) -> int:
        """Return an index that covers all committed entries.

        Before an entry of its own term is committed, a leader may not know that earlier entries are (Raft paper, 8), so
        the end of its log counts.
        """
        index = self._engine.commit_index
        is_of_term = index >= self._journal.first_index and self._journal.term_at(index) == self._engine.term
        return index if is_of_term else self._journal.last_index

    def _check_term(self, members: Sequence[str]) -> None:
        check = TermCheck(self._engine.term, self._rounds.last)
        for member in members:
            self._outbox.transmit(member, check)

    def confirmed(self, peer: str, message: TermConfirmed) -> None:
        """Count a member's confirmation of this leader's term."""
        if self._engine.is_leader and message.term == self._engine.term:
            for read in self._rounds.confirm(peer, message.round):
                self._answer(read)

    def _answer(self, read: ConfirmedRead) -> None:
        reader, number = read.request
        if reader == self._name:
            self._answered(number, read.read_index)
        else:
            self._outbox.transmit(reader, ReadIndexAnswer(self._engine.term, number, read.read_index))

    # As member

    def check_received(self, peer: str, check: TermCheck) -> None:
        """Confirm a leader's term if this voter knows no higher term."""
        if self._engine.may_vote and check.term >= self._engine.term:
            self._outbox.transmit(peer, TermConfirmed(*check))

    # Losses

    def link_began(self, peer: str) -> None:
        """Ask a newly linked member for the confirmations that it may not have got a request for."""
        if self._rounds and self._engine.is_leader:
            self._check_term([peer])

    def link_ended(self, peer: str) -> None:
        """Fail the reads that a lost leader would have answered, and drop the rounds of a lost reader."""
        self._rounds.forget_reader(peer)
        if peer == self._leadership.leader_term.leader:
            self._fail_sent()

    def leader_changed(self) -> None:
        """Fail the reads of an earlier term, and drop its rounds.

        The read index of a leader that had committed no entry of its term may be lost with the end of its log.
        """
        self._rounds.clear()
        self._fail_sent()
        unapplied, self.unapplied = self.unapplied, deque()
        for _, reads in unapplied:
            _fail(reads)

    def beat(self) -> None:
        """Repeat the check of open rounds, and fail requests that stay unanswered. Called each heartbeat interval."""
        self._beat += 1
        if self._rounds and self._engine.is_leader:
            self._check_term(self._linked.members)
        overdue = [number for number, sent in self._sent.items() if sent.beat < self._beat - PATIENCE_BEATS]
        for number in overdue:
            _fail(self._sent.pop(number).reads)

    def _fail_sent(self) -> None:
        sent, self._sent = self._sent, {}
        for each in sent.values():
            _fail(each.reads)


def _fail(reads: Sequence[_Read]) -> None:
    for read in reads:
        read.failed()
