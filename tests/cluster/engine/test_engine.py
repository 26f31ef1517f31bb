"""The hazards of pysyncobj 0.3.17, shown on the stock package, and their absence in our engine.

The stock node is a plain SyncObj, driven by doTick, with a journal in memory and a transport that records sent
messages.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import pickle
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pysyncobj.pickle
import pysyncobj.syncobj as stock
import pytest
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.journal import Journal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from chaos.sim.workload.ledger import Ledger
from chaos.sim.world.disk import SimulatedDisk
from chaos.sim.world.network import Network, NetworkOptions
from chaos.sim.world.world import SimulatedRuntime, SimulatedWorld, WallClock
from cluster.config import GroupConfig
from cluster.configuration.configuration import (
    Configuration,
    MemberId,
    PeerAddress,
    Versions,
    make_configuration,
)
from cluster.engine.engine import NOTICE_S, Engine
from cluster.engine.pysyncobj_adapter import PINNED_VERSION, instrument
from cluster.group.group import Group
from cluster.log.hardstate import HardStateFile
from cluster.log.journal import SLICE_ENTRIES, JournalSizes, SegmentedJournal
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.segment import CorruptJournal, Record
from cluster.raft.elections import Role
from cluster.raft.log_matching import ForeignLog
from cluster.raft.messages import (
    Append,
    AppendResponse,
    HeartbeatResponse,
    HigherTerm,
    LogEntry,
    OutgoingMessage,
    PreVote,
    PreVoteRequest,
    TimeoutNow,
    Vote,
    VoteRequest,
)
from cluster.raft.timing import Timing
from tests.cluster.configurations import configuration_of, configurations_of, directory_of

PEERS = ("b", "c")
NO_OP = b"\x01"
MEMBERSHIP = b"\x02"
FOLLOWER, LEADER = 0, 2


# The stock package


class MemoryJournal(Journal):
    """A journal that counts copied entries."""

    def __init__(self, entries: Sequence[tuple[bytes, int, int]] = (), term: int = 0) -> None:
        self.entries = list(entries)
        self.term = term
        self.voted_for: str | None = None
        self.copied = 0

    def add(self, command: bytes, idx: int, term: int) -> None:
        self.entries.append((command, idx, term))

    def clear(self) -> None:
        self.entries.clear()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        del self.entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        del self.entries[:entryTo]

    def __getitem__(self, item: int | slice) -> Any:
        found = self.entries[item]
        self.copied += len(found) if isinstance(item, slice) else 0
        return found

    def __len__(self) -> int:
        return len(self.entries)

    def _destroy(self) -> None: ...

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None: ...  # noqa: N802, N803

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return 1

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        self.term, self.voted_for = term, votedForNodeId

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self.voted_for


class PeerOutbox(Transport):
    ready = True

    def __init__(self, node: Any, self_node: Any, other_nodes: Any) -> None:
        super().__init__(node, self_node, other_nodes)
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True


class StockNode(SyncObj):
    def __init__(self, journal: Journal, peers: Sequence[str] = PEERS, **conf: Any) -> None:
        self.applied: list[bytes] = []
        conf = {
            "autoTick": False,
            "journalFile": journal,
            "commandsWaitLeader": False,
            "useFork": False,
            **conf,
        }
        super().__init__(
            Node("a"), [Node(peer) for peer in peers], SyncObjConf(**conf), transportClass=PeerOutbox
        )
        for peer in peers:
            self._SyncObj__onNodeConnected(Node(peer))

    @property
    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        return self._SyncObj__transport.sent

    def sent_of(self, kind: str) -> list[dict[str, Any]]:
        return [message for _, message in self.sent if message["type"] == kind]

    def receive(self, peer: str, **message: Any) -> None:
        self._SyncObj__onMessageReceived(Node(peer), message)

    def lead(self, clock: Clock) -> None:
        clock.now_s += 10.0
        self.doTick()
        self.receive("b", type="response_vote", term=self.raftCurrentTerm)
        assert self._isLeader()

    @replicated
    def put(self, payload: bytes) -> None:
        self.applied.append(payload)

    @replicated
    def fail(self) -> None:
        self.applied.append(b"tried")
        raise ZeroDivisionError


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def stock_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Restore the parts of the stock package that our engine replaces, with a clock that the test advances."""
    clock = Clock()
    monkeypatch.setattr(stock, "monotonicTime", clock.monotonic)
    monkeypatch.setattr(stock, "random", random)
    monkeypatch.setattr(stock, "pickle", pysyncobj.pickle)
    return clock


def log_of(*terms: int) -> list[tuple[bytes, int, int]]:
    return [(NO_OP, index, term) for index, term in enumerate(terms, start=1)]


# Ours


def appended(term: int, next_index: int) -> AppendResponse:
    return AppendResponse(term, next_index, True, False, last_index=next_index - 1, last_term=term)


def refused(term: int, next_index: int, log_end: tuple[int, int] = (1, 0)) -> AppendResponse:
    return AppendResponse(term, next_index, False, True, *log_end)


def indexes(append: Append) -> list[int]:
    return [entry.index for entry in append.entries]


class OurNode:
    """An engine on a simulated disk, on its own."""

    def __init__(
        self,
        *terms: int,
        peers: Sequence[str] = PEERS,
        learners: Sequence[str] = (),
        applied_index: int = 1,
        **journal: Any,
    ) -> None:
        """The journal holds entries of these terms, synced."""
        self.world = SimulatedWorld(1)
        wall = WallClock(self.world, 0)
        self.runtime = SimulatedRuntime(self.world, wall, self.world.random("a"), _ignore, _raise, _ignore)
        self.world.now_s = 100.0
        self.disk = SimulatedDisk(self.world.random("disk"), self.world.after)
        hard_state = HardStateFile(OwnedDirectory(self.disk, "", b"test"))
        self.configurations = configurations_of(["a", *peers], learners)
        self.journal = SegmentedJournal(
            OwnedDirectory(self.disk, "log", b"test"),
            hard_state,
            JournalSizes(**journal),
            on_failure=_raise,
            observer=self.configurations,
        )
        if terms:
            self.journal.setCurrentTerm(terms[-1], None)
        for entry in log_of(*terms):
            self.journal.add(*entry)
        self.applied: list[tuple[int, bytes]] = []
        self.engine = Engine(
            MemberId("a", directory_of("a")),
            self.configurations,
            self.journal,
            Timing(),
            self.runtime,
            self._apply,
        )
        self.engine.start_from(applied_index)
        self.journal.sync_now()
        for peer in (*peers, *learners):
            self.engine.peer_connected(peer)

    def _apply(self, index: int, _term: int, payload: bytes) -> None:
        self.applied.append((index, payload))

    def turn(self) -> None:
        self.engine.turn(_ignore)

    def wait(self, seconds: float) -> None:
        """Let time pass, with a turn every now and then."""
        end_s = self.world.now_s + seconds
        while self.world.now_s < end_s:
            self.world.now_s += 0.05
            self.turn()

    def sent(self, message_type: type) -> list[Any]:
        return [outgoing.message for outgoing in self.engine.outbox if type(outgoing.message) is message_type]

    def appends_to(self, peer: str) -> list[Append]:
        return [
            out.message for out in self.engine.outbox if out.peer == peer and isinstance(out.message, Append)
        ]

    def lacking(self) -> dict[str, int | None]:
        """Return the peers that need a snapshot, and the index from which each lacks entries."""
        known = self.engine.progress.items()
        return {peer: progress.lacks_from for peer, progress in known if progress.lacks_from is not None}

    def lead(self) -> None:
        """Win an election, with the votes of b."""
        self.wait(3.0)
        round_ = self.sent(PreVoteRequest)[-1].round
        self.engine.receive("b", PreVote(self.engine.term, round_, granted=True))
        self.turn()
        self.engine.receive("b", Vote(self.engine.term))
        assert self.engine.is_leader
        self.turn()

    def stored_by(self, index: int, *peers: str) -> None:
        """Let these peers, and this node's own disk, hold the log up to `index`."""
        self.turn()
        self.journal.sync_now()
        self.engine.synced()
        for peer in peers:
            self.engine.receive(peer, appended(self.engine.term, index + 1))
        self.turn()

    def append(self, prev_index: int, terms: Sequence[int], commit_index: int = 1, term: int = 9) -> None:
        """Receive an append from b."""
        prev_term = self.journal.term_at(prev_index) if prev_index <= self.journal.last_index else term
        entries = [LogEntry(NO_OP, index, term) for index, term in enumerate(terms, start=prev_index + 1)]
        self.engine.receive("b", Append(term, commit_index, prev_index, prev_term, entries))


def _ignore() -> None:
    """Compose no entry, and record no event."""


def _raise(error: BaseException) -> None:
    raise error


# H1: persist, then speak


def test_h1_stock_acknowledges_entries_that_no_disk_holds(stock_clock: Clock) -> None:
    # The interface of the journal has no method for syncs, so an answer cannot wait for a sync.
    assert not [name for name in dir(Journal) if "sync" in name]
    follower = StockNode(MemoryJournal(log_of(0)))
    follower.receive(
        "b",
        type="append_entries",
        term=1,
        commit_index=1,
        prevLogIdx=1,
        prevLogTerm=0,
        entries=[(NO_OP, 2, 1)],
    )
    assert follower.sent_of("next_node_idx")[-1]["success"]

    leader = StockNode(MemoryJournal())
    leader.lead(stock_clock)
    leader.receive("b", type="next_node_idx", next_node_idx=3, success=True, reset=False)
    leader.doTick()
    assert leader.raftCommitIndex == 2  # a follower and the leader's own unsynced tail


def test_h1_an_acknowledgement_waits_for_the_sync() -> None:
    node = OurNode(0)
    node.append(1, [9])
    acknowledgements = [out for out in node.engine.outbox if isinstance(out.message, AppendResponse)]
    assert acknowledgements[-1].message == AppendResponse(9, 3, True, False, last_index=2, last_term=9)
    assert acknowledgements[-1].sync_point > node.journal.synced
    node.journal.sync_now()
    assert acknowledgements[-1].sync_point <= node.journal.synced


def test_h1_a_leader_does_not_count_itself_before_it_has_synced() -> None:
    node = OurNode(0)
    node.lead()
    node.engine.receive("b", appended(node.engine.term, 3))
    node.turn()
    assert node.engine.commit_index == 1
    node.journal.sync_now()
    node.engine.synced()
    node.turn()
    assert node.engine.commit_index == 2


def test_majority_does_not_wait_for_the_disk_of_the_leader() -> None:
    node = leading()
    index = node.engine.propose(NO_OP)
    node.turn()
    for peer in PEERS:
        node.engine.receive(peer, appended(node.engine.term, index + 1))
    assert node.engine.wants_turn
    assert not node.engine.delays_commit(), "all that is missing is the turn"
    node.turn()
    assert node.engine.commit_index == index
    assert node.journal.synced_index < index


def test_unsynced_entries_of_a_leader_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.engine.engine.UNSYNCED_BYTES_MAX", 1000)
    node = leading()

    def stored_by_peers() -> int:
        index = node.engine.propose(NO_OP.ljust(600))
        node.turn()
        for peer in PEERS:
            node.engine.receive(peer, appended(node.engine.term, index + 1))
        node.turn()
        return index

    first = stored_by_peers()
    assert node.engine.commit_index == first
    second = stored_by_peers()
    assert node.engine.commit_index == first
    assert node.engine.delays_commit()
    assert not node.engine.wants_turn, "its own disk is too far behind"
    node.journal.sync_now()
    node.engine.synced()
    assert node.engine.wants_turn
    node.turn()
    assert node.engine.commit_index == second


def test_h1_term_and_vote_are_durable_before_the_answer_leaves() -> None:
    node = OurNode(0)
    node.engine.receive("b", VoteRequest(term=5, last_index=1, last_term=0))
    assert node.sent(Vote) == [Vote(5)]
    node.disk.crash(power_loss=True)
    hard_state = HardStateFile(OwnedDirectory(node.disk, "", b"test"))
    hard_state.load()
    again = SegmentedJournal(OwnedDirectory(node.disk, "log", b"test"), hard_state, on_failure=_raise)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (5, "b")


# H2: matching entries stay


def test_h2_stock_deletes_acknowledged_entries_on_a_repetition(stock_clock: Clock) -> None:
    journal = MemoryJournal(log_of(0, 1, 1, 1), term=1)
    follower = StockNode(journal)
    message = {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    follower.receive("b", **message, entries=[(NO_OP, 2, 1)])
    assert [index for _, index, _ in journal.entries] == [1, 2]


def test_h2_repeated_or_overlapping_append_deletes_no_entry() -> None:
    node = OurNode(0, 1, 1, 1)
    node.append(1, [1])
    assert node.journal.last_index == 4
    node.append(2, [1, 1, 9])
    assert [node.journal.term_at(index) for index in range(1, 6)] == [0, 1, 1, 1, 9]


def test_h2_a_conflicting_tail_goes() -> None:
    node = OurNode(0, 1, 2, 2, 2)
    node.append(2, [3, 3])
    assert [node.journal.term_at(index) for index in range(1, 5)] == [0, 1, 3, 3]
    assert node.journal.last_index == 4


def test_h2_commit_index_stays_within_the_message() -> None:
    node = OurNode(0, 1, 1, 1)
    node.append(2, [1], commit_index=50)
    assert node.engine.commit_index == 3


# H3: a snapshot chunk confirms no entries


SNAPSHOT_CHUNK = {"type": "append_entries", "term": 3, "commit_index": 4, "serialized": None}


def test_h3_stock_commits_unverified_tail_on_a_snapshot_chunk(stock_clock: Clock) -> None:
    follower = StockNode(MemoryJournal(log_of(0, 1, 1, 1), term=1))
    follower.receive("b", **SNAPSHOT_CHUNK)
    assert follower.raftCommitIndex == 4


def test_h3_empty_append_vouches_for_its_previous_entry_only() -> None:
    """No message of ours carries a snapshot chunk: all name the entry that they follow."""
    node = OurNode(0, 1, 1, 1)
    node.append(1, [], commit_index=4, term=1)
    assert node.engine.commit_index == 1
    node.append(2, [], commit_index=4, term=1)
    assert node.engine.commit_index == 2


# H4: acknowledgements belong to a term


def test_h4_stock_counts_an_acknowledgement_of_an_earlier_term(stock_clock: Clock) -> None:
    leader = StockNode(MemoryJournal(log_of(0, 1, 1), term=1))
    leader.lead(stock_clock)
    # It acknowledges entries 2 to 4 of term 1, of which the last was replaced since; the message has no term.
    leader.receive("c", type="next_node_idx", next_node_idx=5, success=True, reset=False)
    leader.doTick()
    assert leader.raftCommitIndex == 4


def test_h4_acknowledgement_of_an_earlier_term_does_not_count() -> None:
    node = OurNode(0, 1, 1)
    node.lead()
    node.journal.sync_now()
    node.engine.receive("c", appended(1, 5))
    node.turn()
    assert node.engine.commit_index == 1
    node.engine.receive("c", appended(node.engine.term, 5))
    node.turn()
    assert node.engine.commit_index == 4


# H5: a dump does not clear the log


def test_h5_stock_loses_the_tail_if_the_dump_is_newer(stock_clock: Clock, tmp_path: Path) -> None:
    dump = str(tmp_path / "dump")
    journal = MemoryJournal()
    node = StockNode(journal, peers=(), fullDumpFile=dump)
    for number in range(5):
        node.put(b"%d" % number)
        stock_clock.now_s += 10.0
        node.doTick()
    node.forceLogCompaction()
    node.doTick()
    # The dump is written. Entries arrive, and the node dies before it trims the journal.
    for index in range(len(journal) + 1, len(journal) + 11):
        journal.add(NO_OP, index, journal.term)
    last_index = journal[-1][1]
    again = StockNode(journal, peers=(), fullDumpFile=dump)
    again.doTick()
    assert journal[-1][1] <= last_index - 10


def test_h5_a_start_from_a_checkpoint_keeps_the_log() -> None:
    node = OurNode(0, 1, 1, 1, 1, 1, applied_index=3)
    node.turn()
    assert (node.journal.first_index, node.journal.last_index) == (1, 6)
    node.append(6, [], commit_index=6)
    node.turn()
    assert [index for index, _ in node.applied] == [4, 5, 6]


# H6: large entries


def test_h6_stock_pickles_a_large_entry_and_ends_it_twice(stock_clock: Clock) -> None:
    leader = StockNode(MemoryJournal(), appendEntriesBatchSizeBytes=1000, appendEntriesUseBatch=False)
    leader.lead(stock_clock)
    leader.sent.clear()
    leader._SyncObj__raftLog.add(b"\x00" * 1990, 3, leader.raftCurrentTerm)
    leader._SyncObj__sendAppendEntries()
    parts = [message for peer, message in leader.sent if peer == "b" and "transmission" in message]
    assert [part["transmission"] for part in parts] == ["start", "finish", "finish"]

    follower = StockNode(MemoryJournal(log_of(0)))
    follower.receive("b", **parts[0])
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        follower.receive("b", **parts[1])


def test_h6_a_large_entry_is_an_entry_like_any_other() -> None:
    node = OurNode(0, slice_bytes=1000)
    node.lead()
    node.engine.outbox.clear()
    node.engine.propose(b"\x00" * 500_000)
    node.turn()
    entries = [entry for message in node.sent(Append) for entry in message.entries if entry.payload != NO_OP]
    assert [len(entry.payload) for entry in entries] == [500_000] * len(PEERS)


def test_h6_large_entries_are_sent_singly_and_once_per_turn() -> None:
    """Two together once made a frame that no link took."""
    node = OurNode(0, slice_bytes=1000)
    node.lead()
    for _ in range(3):
        node.engine.propose(b"\x00" * 2_000_000)
    node.journal.sync_now()
    node.engine.receive("b", refused(node.engine.term, 2))
    node.engine.receive("b", appended(node.engine.term, 3))
    sizes: list[list[list[int]]] = []
    for _ in range(4):
        node.engine.outbox.clear()
        node.turn()
        sizes.append([[len(entry.payload) for entry in append.entries] for append in node.appends_to("b")])
    assert sizes == [[[2_000_000]]] * 3 + [[]]


def test_h6_a_conflicting_tail_of_large_entries_is_deleted() -> None:
    node = OurNode(0, 1, 1, 1, slice_bytes=1)
    node.append(2, [9])
    assert [node.journal.term_at(index) for index in range(1, 4)] == [0, 1, 9]
    assert node.journal.last_index == 3


# H7: views of the log instead of copies


def test_h7_stock_copies_the_rest_of_the_log_for_every_append(stock_clock: Clock) -> None:
    journal = MemoryJournal(log_of(0, *[1] * 1000), term=1)
    leader = StockNode(journal, peers=["b", "c"], appendEntriesBatchSizeBytes=10)
    leader.lead(stock_clock)
    leader.receive("b", type="next_node_idx", next_node_idx=2, success=False, reset=True)
    journal.copied = 0
    leader._SyncObj__sendAppendEntries()
    assert journal.copied > 40 * len(journal)


def test_h7_entry_to_send_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = OurNode(0, *[1] * 1000, slice_bytes=600)
    node.lead()
    node.engine.receive("b", refused(node.engine.term, 2))
    node.turn()
    read = 0
    read_entries = SegmentedJournal.entries

    def counting(journal: SegmentedJournal, start: int, stop: int) -> Any:
        nonlocal read
        read += stop - start
        return read_entries(journal, start, stop)

    monkeypatch.setattr(SegmentedJournal, "entries", counting)
    node.engine.outbox.clear()
    node.engine.receive("b", appended(node.engine.term, 4))
    node.turn()
    while node.engine.behind:
        node.turn()
    assert sum(len(message.entries) for message in node.sent(Append)) > 950
    assert read < 1100


def test_lagging_follower_is_sent_some_entries_in_each_turn() -> None:
    """Reading entries takes the loop's time, and other work waits."""
    node = OurNode(0, *[1] * 2500)
    node.lead()
    node.engine.receive("b", refused(node.engine.term, 2))
    node.turn()
    node.engine.receive("b", appended(node.engine.term, 4))
    sent: list[int] = []
    for _ in range(6):
        node.engine.outbox.clear()
        node.turn()
        entries = [entry.index for append in node.appends_to("b") for entry in append.entries]
        assert len(entries) <= SLICE_ENTRIES
        assert node.engine.behind is (node.journal.last_index not in [*sent, *entries])
        sent += entries
    assert len(sent) > 2 * SLICE_ENTRIES
    assert sent[-1] == node.journal.last_index


# H8: a follower that cannot keep up


def test_h8_stock_sends_entries_to_a_follower_that_does_not_read(stock_clock: Clock) -> None:
    leader = StockNode(
        MemoryJournal(log_of(0, *[1] * 1000), term=1), peers=["b", "c"], appendEntriesBatchSizeBytes=10
    )
    leader.lead(stock_clock)
    leader.receive("b", type="next_node_idx", next_node_idx=2, success=False, reset=True)
    leader.sent.clear()
    leader._SyncObj__sendAppendEntries()
    entries = [message["entries"] for peer, message in leader.sent if peer == "b"]
    assert sum(map(len, entries)) >= 1000


def test_h8_congested_peer_gets_no_entries_until_it_drains() -> None:
    node = OurNode(0, *[1] * 100)
    node.lead()
    for peer in PEERS:
        end = node.journal.last_index + 1
        node.engine.receive(peer, appended(node.engine.term, end))
    node.turn()
    node.engine.peer_paused("b")
    node.engine.outbox.clear()
    node.engine.propose(b"\x00new")
    node.wait(0.5)
    assert node.appends_to("b") == []
    assert node.appends_to("c")
    node.engine.peer_resumed("b")
    node.turn()
    assert [entry.payload for append in node.appends_to("b") for entry in append.entries] == [b"\x00new"]


def test_follower_with_drained_links_wants_a_single_turn() -> None:
    node = OurNode(0)
    node.append(1, [9])
    node.engine.peer_paused("c")
    node.engine.peer_resumed("c")
    node.turn()
    node.append(2, [9])
    assert not node.engine.wants_turn


# H9: leaders and campaigns without a majority


def test_h9_stock_leads_for_half_a_minute_without_a_message(stock_clock: Clock) -> None:
    leader = StockNode(MemoryJournal())
    leader.lead(stock_clock)
    stock_clock.now_s += 29.0
    leader.doTick()
    assert leader._isLeader()


def test_h9_leader_without_a_majority_steps_down_soon() -> None:
    node = OurNode(0)
    node.lead()
    node.wait(Timing().election_min_s + 0.2)
    assert not node.engine.is_leader


def test_h9_leader_stays_while_message_parts_arrive() -> None:
    node = OurNode(0)
    node.lead()
    for turn in range(20):
        if turn % 2:
            node.engine.part_received("b")
        else:
            node.engine.receive("c", HeartbeatResponse(node.engine.term))
        node.wait(Timing().election_min_s / 2)
    assert node.engine.is_leader
    for _ in range(3):
        node.engine.receive("c", HeartbeatResponse(node.engine.term - 1))
        node.wait(Timing().election_min_s / 2)
    assert not node.engine.is_leader


def test_h9_large_message_in_flight_is_answered_without_election() -> None:
    node = OurNode(0)
    node.append(1, [9])
    node.journal.sync_now()
    node.wait(0.1)
    node.engine.outbox.clear()
    for _ in range(100):
        node.engine.part_received("b")
        node.engine.part_received("b")
        node.wait(0.1)
    assert not node.sent(PreVoteRequest)
    assert [(out.peer, out.message) for out in node.engine.outbox] == [("b", HeartbeatResponse(9))] * 100
    node.engine.receive("c", PreVoteRequest(term=10, last_index=5, last_term=9, round=1))
    assert not node.sent(PreVote)[-1].granted
    for _ in range(100):
        node.engine.part_received("c")  # which does not lead
        node.wait(0.1)
    assert node.sent(PreVoteRequest)


def test_h9_follower_with_a_busy_disk_reports_to_its_leader() -> None:
    node = OurNode(0)
    node.append(1, [9])
    assert [(type(out.message), out.sync_point > node.journal.synced) for out in node.engine.outbox] == [
        (AppendResponse, True),
        (HeartbeatResponse, False),
    ]


def test_h9_stock_raises_its_term_again_and_again_while_cut_off(stock_clock: Clock) -> None:
    node = StockNode(MemoryJournal())
    for _ in range(10):
        stock_clock.now_s += 10.0
        node.doTick()
    assert node.raftCurrentTerm == 10


def test_h9_isolated_node_pre_votes_and_keeps_its_term() -> None:
    node = OurNode(0)
    node.wait(100.0)
    assert node.engine.term == 0
    assert node.sent(PreVoteRequest)
    assert not node.sent(VoteRequest)


def test_h9_time_within_a_turn_causes_no_unvoted_campaign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = OurNode(0)
    monotonic, reads = node.runtime.monotonic, itertools.count()
    monkeypatch.setattr(node.runtime, "monotonic", lambda: monotonic() + 0.005 * next(reads))
    node.wait(20.0)
    assert node.sent(PreVoteRequest)
    assert node.engine.term == 0
    assert node.sent(VoteRequest) == []


@pytest.mark.parametrize("peers", [PEERS, ()])
def test_h9_deadline_within_a_turn_starts_no_campaign(
    monkeypatch: pytest.MonkeyPatch, peers: Sequence[str]
) -> None:
    node = OurNode(0, peers=peers, learners=["d"])
    node.engine.may_vote = False

    def time_goes_on() -> float:
        node.world.now_s += 0.001
        return node.world.now_s

    monkeypatch.setattr(node.runtime, "monotonic", time_goes_on)
    for _ in range(5000):
        node.turn()
    assert (node.engine.term, node.engine.voted_for, node.engine.is_leader) == (0, None, False)


def test_h9_follower_of_a_leader_grants_no_pre_vote() -> None:
    node = OurNode(0)
    node.append(1, [9])
    node.engine.receive("c", PreVoteRequest(term=10, last_index=5, last_term=9, round=1))
    assert node.sent(PreVote) == [PreVote(9, 1, granted=False)]
    node.wait(Timing().election_max_s)
    node.engine.receive("c", PreVoteRequest(term=10, last_index=5, last_term=9, round=2))
    assert node.sent(PreVote)[-1] == PreVote(9, 2, granted=True)


def test_h9_early_pre_votes_start_no_campaign_after_a_leader() -> None:
    node = OurNode(0)
    node.wait(3.0)
    node.engine.receive("c", PreVote(0, node.sent(PreVoteRequest)[-1].round, granted=True))
    node.append(1, [9])
    node.wait(100.0)
    assert node.engine.term == 9


def test_node_with_the_longer_log_refuses_and_campaigns_itself() -> None:
    node = OurNode(0, 1, 1)
    node.engine.receive("c", PreVoteRequest(term=10, last_index=2, last_term=1, round=1))
    assert [answer.granted for answer in node.sent(PreVote)] == [False]
    node.wait(2 * Timing().campaign_jitter_s)
    assert node.sent(PreVoteRequest)


def test_equal_node_with_the_smaller_name_refuses_the_pre_vote() -> None:
    node = OurNode(0)
    node.wait(3.0)
    assert node.sent(PreVoteRequest)
    node.engine.receive("c", PreVoteRequest(term=1, last_index=1, last_term=0, round=1))
    assert [answer.granted for answer in node.sent(PreVote)] == [False]


def test_node_repeats_its_pre_vote_after_a_refused_tie() -> None:
    node = OurNode(0)
    node.wait(3.0)
    node.engine.outbox.clear()
    node.engine.receive("c", PreVoteRequest(term=1, last_index=1, last_term=0, round=1))
    node.wait(2 * Timing().campaign_jitter_s)
    assert node.sent(PreVoteRequest)


def test_silent_leader_is_suspected_early_but_followed_longer() -> None:
    node = OurNode(0)
    node.append(1, [9])
    node.wait(Timing().suspicion_min_s - 0.01)
    assert not node.sent(PreVoteRequest)
    node.wait(0.1)
    assert node.sent(PreVoteRequest)
    assert node.engine.leader == "b"
    assert not node.engine.hears_leader()
    node.wait(Timing().election_min_s)
    assert node.engine.leader is None


def test_suspected_leader_that_speaks_again_is_awaited_longer() -> None:
    node = OurNode(0)
    node.append(1, [9])
    node.wait(0.7)
    assert node.sent(PreVoteRequest)
    node.engine.outbox.clear()
    for _ in range(10):
        node.append(1, [9])
        node.wait(0.7)
    assert node.engine.leader == "b"
    assert not node.sent(PreVoteRequest)


def test_stalled_follower_first_listens_for_its_leader() -> None:
    node = OurNode(0)
    node.append(1, [9])
    node.world.now_s += 60.0
    node.turn()
    node.engine.receive("c", PreVoteRequest(term=10, last_index=5, last_term=9, round=1))
    assert [answer.granted for answer in node.sent(PreVote)] == [False]
    node.wait(0.3)
    assert not node.sent(PreVoteRequest)
    node.wait(0.3)
    assert node.sent(PreVoteRequest)


def test_stalled_leader_first_listens_for_its_followers() -> None:
    node = OurNode(0)
    node.lead()
    node.world.now_s += 60.0
    node.turn()
    assert node.engine.is_leader
    node.wait(Timing().election_min_s)
    assert not node.engine.is_leader


def test_starting_node_pre_votes_before_the_election_timeout() -> None:
    node = OurNode(0)
    node.wait(Timing().election_min_s / 2)
    assert node.sent(PreVoteRequest)


def test_node_without_a_vote_ignores_the_clock_of_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, other = OurNode(0), OurNode(0)
    node.engine.may_vote = False
    other.world.now_s += 1000.0
    own_clock = node.runtime.monotonic

    def turn_of_the_peer_until_time_is_reported() -> float:
        thread = threading.Thread(target=other.turn)
        thread.start()
        thread.join()
        return own_clock()

    monkeypatch.setattr(node.runtime, "monotonic", turn_of_the_peer_until_time_is_reported)
    node.wait(3.0)
    assert other.sent(PreVoteRequest)
    assert (node.engine.term, node.engine.voted_for) == (0, None)


# H10: exceptions while applying


def test_h10_stock_applies_a_failing_entry_for_ever(stock_clock: Clock) -> None:
    node = StockNode(MemoryJournal(), peers=())
    stock_clock.now_s += 10.0
    node.doTick()
    node.fail()
    node.doTick()
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            node.doTick()
    assert len(node.applied) == 5


def test_h10_an_exception_in_the_machine_stops_the_node() -> None:
    class Broken(Ledger):
        def end_entry(self, time_ms: int) -> Sequence[Any]:
            raise ZeroDivisionError

    world = SimulatedWorld(1)
    failures: list[BaseException] = []
    runtime = SimulatedRuntime(
        world, WallClock(world, 0), world.random("a"), _ignore, failures.append, _ignore
    )
    network = Network(world, ["a"], NetworkOptions(), world.random("network"))
    disk = SimulatedDisk(world.random("disk"), world.after)
    config = GroupConfig("a", {"a": PeerAddress("a", 1)}, "test")
    group = Group(config, Broken(), runtime, disk, network.attach("a", runtime))
    group.start(NoEvents())
    world.run_until(10.0)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert not runtime.alive


class NoEvents:
    def applied(self, index: int, effects: Sequence[Any]) -> None:
        raise AssertionError("the entry was never applied")

    def leader_changed(self, leader: str | None, term: int) -> None: ...


# H11: data from the network is never unpickled


class Intruder:
    """Unpickling it calls a function of its choice."""

    calls = 0

    def __reduce__(self) -> Any:
        return (_intrude, ())


def _intrude() -> None:
    Intruder.calls += 1


@pytest.fixture
def intrusion() -> Iterator[bytes]:
    Intruder.calls = 0
    yield MEMBERSHIP + pickle.dumps(Intruder())
    Intruder.calls = 0


def test_h11_stock_executes_code_in_an_entry(stock_clock: Clock, intrusion: bytes) -> None:
    follower = StockNode(MemoryJournal(log_of(0)))
    message = {"type": "append_entries", "term": 1, "commit_index": 2, "prevLogIdx": 1, "prevLogTerm": 0}
    follower.receive("b", **message, entries=[(intrusion, 2, 1)])
    with suppress(TypeError):  # it is no membership request, but by then it has been called
        follower.doTick()
    assert Intruder.calls


def test_h11_a_membership_entry_is_just_bytes(intrusion: bytes) -> None:
    node = OurNode(0)
    node.engine.receive("b", Append(1, 2, 1, 0, [LogEntry(intrusion, 2, 1)]))
    node.turn()
    assert node.applied == [(2, intrusion)]
    assert not Intruder.calls


def test_h11_pickle_is_out_of_reach() -> None:
    with pytest.raises(RuntimeError, match="pickle"):
        stock.pickle.loads(b"")


# H12: committed entries are never deleted


def test_h12_stock_deletes_applied_entries(stock_clock: Clock) -> None:
    journal = MemoryJournal(log_of(0, 1, 1, 1), term=1)
    follower = StockNode(journal)
    append = {"type": "append_entries", "term": 1, "commit_index": 4, "prevLogIdx": 4, "prevLogTerm": 1}
    follower.receive("b", **append, entries=[])
    follower.doTick()
    assert follower.raftLastApplied == 4
    append = {"type": "append_entries", "term": 2, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    follower.receive("b", **append, entries=[(NO_OP, 2, 2)])
    assert [term for _, _, term in journal.entries] == [0, 2]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    ("prev_index", "prev_term", "terms"),
    [(1, 0, [2]), (2, 1, [1, 3]), (3, 2, []), (1, 0, [1, 1, 2, 2])],
    ids=["first", "second", "the one before", "the last that is committed"],
)
def test_h12_leader_without_a_committed_entry_is_refused(
    prev_index: int, prev_term: int, terms: Sequence[int], *, applied: bool
) -> None:
    node = OurNode(0, 1, 1, 1, 1)
    node.append(4, [], commit_index=4, term=1)
    if applied:
        node.turn()
        assert [index for index, _ in node.applied] == [2, 3, 4]
    entries = [LogEntry(NO_OP, index, term) for index, term in enumerate(terms, start=prev_index + 1)]
    with pytest.raises(ForeignLog, match=r"the log of node 'b', leader of term 9, has an entry \d of term"):
        node.engine.receive("b", Append(9, 1, prev_index, prev_term, entries))
    assert node.journal.last_index == 5
    assert (node.engine.term, node.engine.leader) == (1, "b")


def test_h12_leader_with_a_log_shorter_than_committed_is_refused() -> None:
    node = OurNode(0, 1, 1, 1, 1)
    node.append(4, [], commit_index=4, term=1)
    node.engine.check_end_of("c", 1, 4)
    node.engine.check_end_of("c", 0, 3)  # it does not know yet that it does not lead any more
    node.engine.check_end_of("b", 1, 3)  # sent before the first message, over a different connection
    with pytest.raises(
        ForeignLog, match="leader of term 2, ends with entry 3; but all up to entry 4 is committed"
    ):
        node.engine.check_end_of("c", 2, 3)


def test_h12_snapshot_of_a_foreign_log_is_refused() -> None:
    node = OurNode(0, 1, 1, 1, 1)
    node.append(4, [], commit_index=4, term=1)
    for index, term in [(4, 1), (5, 2), (9, 2)]:
        node.engine.check_snapshot("b", index, term)
    with pytest.raises(ForeignLog, match="has an entry 4 of term 2, which is of term 1 here"):
        node.engine.check_snapshot("b", 4, 2)


# Findings of the simulation


def test_refused_appends_do_not_multiply() -> None:
    """Each of a row of refusals once had everything sent again, and was refused again, without end."""
    node = OurNode(0, *[1] * 200, slice_bytes=600)
    node.lead()
    node.engine.outbox.clear()
    for _ in range(50):
        node.engine.receive("b", refused(node.engine.term, 2))
        node.turn()
    assert len(node.sent(Append)) <= 2 * len(PEERS)
    node.engine.receive("b", appended(node.engine.term, 4))
    node.turn()
    sent = node.appends_to("b")
    assert sent[-1].prev_index + len(sent[-1].entries) == node.journal.last_index


def leader_of_half_a_log() -> OurNode:
    node = OurNode(0, *[1] * 100, segment_entries=10)
    node.lead()
    node.journal.sync_now()
    node.journal.replace([segment for segment in node.journal.segments() if segment.sealed][:5], None)
    assert 20 < node.journal.first_index < 60
    node.engine.outbox.clear()
    return node


def test_log_that_differs_before_the_leaders_first_is_tried_once() -> None:
    """It reaches into the leader's, and each refusal once seemed to say that it had installed a snapshot (504408)."""
    node = leader_of_half_a_log()
    first, term = node.journal.first_index, node.engine.term
    for next_index in range(61, first - 1, -1):
        node.engine.receive("b", refused(term, next_index, (60, 0)))
        node.turn()
    for _ in range(20):
        assert node.lacking() == {"b": first}
        node.engine.outbox.clear()
        node.engine.receive("b", refused(term, 61, (60, 0)))
        node.turn()
        assert not node.sent(Append)
    # Its log ends where the installed snapshot ends.
    node.engine.receive("b", refused(term, 61, (60, 1)))
    node.turn()
    assert not node.lacking()
    assert node.appends_to("b")[0].prev_index == 60


def test_snapshot_is_requested_again_from_a_peer_without_it() -> None:
    node = leader_of_half_a_log()
    first, term = node.journal.first_index, node.engine.term
    for _ in range(3):
        for next_index in range(61, first - 1, -1):
            node.engine.receive("b", refused(term, next_index, (60, 0)))
            node.turn()
        assert node.lacking() == {"b": first}
        node.engine.progress["b"].probe_again()
        assert not node.lacking()
        node.engine.outbox.clear()
        node.engine.receive("b", refused(term, 61, (60, 0)))
        node.turn()
        assert node.appends_to("b")[0].prev_index == 60


@pytest.mark.parametrize(("lacks_much", "lacks_little"), [("b", "c"), ("c", "b")])
def test_damaged_entry_that_a_peer_lacks_affects_that_peer_only(
    lacks_much: str, lacks_little: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that had just been probed once got no further message of this leader (710575)."""
    node = OurNode(0, *[1] * 100)
    node.lead()
    entries = SegmentedJournal.entries

    def damaged_at_30(journal: SegmentedJournal, start: int, stop: int) -> list[Record]:
        if start <= 30 < stop:
            raise CorruptJournal("log", 0, "wrong checksum")
        return entries(journal, start, stop)

    with monkeypatch.context() as damage:
        damage.setattr(SegmentedJournal, "entries", damaged_at_30)
        node.engine.receive(lacks_much, refused(node.engine.term, 25))
        node.engine.receive(lacks_little, refused(node.engine.term, 90))
        with pytest.raises(CorruptJournal):
            node.turn()
    node.engine.outbox.clear()
    node.wait(1.0)
    assert node.appends_to(lacks_much)
    assert node.appends_to(lacks_little)


# Elections and transfer


def test_leadership_is_transferred_to_an_up_to_date_peer() -> None:
    node = OurNode(0)
    node.lead()
    assert not node.engine.transfer_leadership(PEERS)
    node.engine.receive("c", appended(node.engine.term, 3))
    assert node.engine.transfer_leadership(PEERS)
    assert OutgoingMessage(0, "c", TimeoutNow(node.engine.term)) in node.engine.outbox


def test_stock_counts_a_vote_as_often_as_it_comes(stock_clock: Clock) -> None:
    node = StockNode(MemoryJournal(), peers=("b", "c", "d", "e"))
    stock_clock.now_s += 10.0
    node.doTick()
    for _ in range(2):
        node.receive("b", type="response_vote", term=node.raftCurrentTerm)
    assert node._isLeader()


def test_a_vote_counts_once_and_in_its_own_term() -> None:
    node = OurNode(0, peers=["b", "c", "d", "e"])
    node.append(1, [9])
    node.engine.receive("b", TimeoutNow(9))
    node.turn()
    term = node.engine.term
    for peer, vote in [("b", Vote(term)), ("b", Vote(term)), ("c", Vote(term - 1))]:
        node.engine.receive(peer, vote)
    assert node.engine.role is Role.CANDIDATE
    node.engine.receive("c", Vote(term))
    assert node.engine.is_leader


def test_timeout_now_makes_a_node_campaign_at_once() -> None:
    node = OurNode(0)
    node.append(1, [9])
    node.engine.receive("b", TimeoutNow(9))
    node.turn()
    assert node.engine.role is Role.CANDIDATE
    assert node.sent(VoteRequest)[-1].term == 10


def test_member_that_never_campaigns_obeys_timeout_now() -> None:
    node = OurNode(0)
    node.engine.campaigns_on_timeout = False
    node.append(1, [9])
    node.wait(10.0)
    assert node.sent(PreVoteRequest) == []
    node.append(1, [9])
    node.engine.receive("b", TimeoutNow(9))
    node.turn()
    assert node.engine.role is Role.CANDIDATE


def test_learner_is_sent_entries_and_does_not_count() -> None:
    node = OurNode(0, learners=["d"])
    node.wait(3.0)
    assert {out.peer for out in node.engine.outbox} == set(PEERS)  # the peers asked for a pre-vote
    round_ = node.sent(PreVoteRequest)[-1].round
    node.engine.receive("d", PreVote(0, round_, granted=True))
    node.turn()
    assert not node.sent(VoteRequest)
    node.engine.receive("b", PreVote(0, round_, granted=True))
    node.turn()
    node.engine.receive("d", Vote(node.engine.term))
    assert not node.engine.is_leader
    node.engine.receive("b", Vote(node.engine.term))
    node.turn()
    node.journal.sync_now()
    node.engine.synced()
    assert [entry.index for sent in node.appends_to("d") for entry in sent.entries] == [2]
    node.engine.receive("d", appended(node.engine.term, 3))
    node.turn()
    assert node.engine.acknowledged_index("d") == 2
    assert node.engine.commit_index == 1
    assert not node.engine.transfer_leadership(["d", *PEERS])
    node.engine.receive("b", appended(node.engine.term, 3))
    node.turn()
    assert node.engine.commit_index == 2


# The pin


def test_installed_pysyncobj_has_the_pinned_version() -> None:
    assert importlib.metadata.version("pysyncobj") == PINNED_VERSION == "0.3.17"


def test_engine_refuses_an_unpinned_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "VERSION", "0.3.18")
    with pytest.raises(RuntimeError, match=r"0\.3\.18"):
        instrument()


# Members that come and go


def entry_with(voters: str, learners: str = "") -> bytes:
    return make_configuration(0, configuration_of(voters, learners))


def leading() -> OurNode:
    """A leader that has committed an entry of its own term."""
    node = OurNode(0)
    node.lead()
    node.stored_by(node.journal.last_index, *PEERS)
    assert node.engine.commit_index == node.journal.last_index
    return node


def test_leader_counts_by_the_newest_uncommitted_configuration() -> None:
    node = leading()
    index = node.engine.propose(entry_with("abcd"))
    node.engine.peer_connected("d")
    node.stored_by(index, "b")
    assert node.engine.commit_index == index - 1, "two of four are no majority"
    node.stored_by(index, "d")
    assert node.engine.commit_index == index


def test_learner_does_not_count_until_it_is_promoted() -> None:
    node = leading()
    index = node.engine.propose(entry_with("abc", "d"))
    node.engine.peer_connected("d")
    node.turn()
    assert node.appends_to("d")
    node.stored_by(index, "d")
    assert node.engine.commit_index == index - 1
    node.stored_by(index, "b")
    assert node.engine.commit_index == index
    promotion = node.engine.propose(entry_with("abcd"))
    node.stored_by(promotion, "b", "d")
    assert node.engine.commit_index == promotion


def test_acknowledgement_of_a_voter_counts_on_its_next_link() -> None:
    node = leading()
    index = node.engine.propose(NO_OP)
    node.turn()
    node.engine.receive("b", appended(node.engine.term, index + 1))
    node.engine.peer_lost("b")
    node.engine.peer_connected("b")
    node.stored_by(index)
    assert node.engine.commit_index == index


def test_acknowledgement_of_lost_entries_does_not_count() -> None:
    node = leading()
    index = node.engine.propose(NO_OP)
    node.turn()
    node.engine.receive("b", appended(node.engine.term, index + 1))
    node.engine.peer_lost("b")
    node.engine.peer_connected("b")
    node.engine.peer_has_lost("b", 1)
    node.stored_by(index)
    assert node.engine.acknowledged_index("b") == 1
    assert node.engine.commit_index == index - 1
    node.engine.receive("b", refused(node.engine.term, 2))
    node.turn()
    assert indexes(node.appends_to("b")[-1])[0] == 2
    node.stored_by(index, "b")
    assert node.engine.commit_index == index


def test_learner_acknowledges_its_entries_on_each_link() -> None:
    node = leading()
    index = node.engine.propose(entry_with("abc", "d"))
    node.engine.peer_connected("d")
    node.stored_by(index, "b", "d")
    assert node.engine.acknowledged_index("d") == index
    node.engine.peer_lost("d")
    node.engine.peer_connected("d")
    assert node.engine.acknowledged_index("d") == 0


def test_a_learner_is_fed_at_its_pace_and_a_voter_at_once() -> None:
    """10 MiB of log: a voter is sent them as fast as it goes, the learner 16 MiB a second, as there are clients."""
    node = leading()
    first = node.journal.last_index + 1
    for _ in range(10):
        node.engine.propose(bytes(1024 * 1024))
    node.turn()  # they have grown the log, and that is forgiven
    node.engine.propose(entry_with("abc", "d"))
    node.engine.peer_connected("d")
    node.engine.receive("d", refused(node.engine.term, first))
    begun_s, turns, done_s = node.world.now_s, 0, dict[str, float]()
    while len(done_s) < 3:
        node.turn()
        turns += 1
        for peer in {*PEERS, "d"} - done_s.keys():
            if any(first + 9 in indexes(append) for append in node.appends_to(peer)):
                done_s[peer] = node.world.now_s - begun_s
        if not node.engine.behind:
            node.world.now_s = node.engine.resume_s
    assert done_s["b"] == done_s["c"] == 0
    assert 0.4 < done_s["d"] < 0.7
    assert turns < 100


def test_removed_leader_leads_until_the_commit_without_its_vote() -> None:
    node = leading()
    index = node.engine.propose(entry_with("bc"))
    node.stored_by(index, "b")
    assert node.engine.is_leader
    assert node.engine.commit_index == index - 1, "b and c both have to have it"
    node.stored_by(index, "c")
    assert node.engine.commit_index == index
    node.engine.receive("b", HigherTerm(node.engine.term + 1))
    node.engine.outbox.clear()
    node.wait(10.0)
    assert node.sent(PreVoteRequest) == [], "who is no member does not stand for election"


def test_removed_peer_gets_its_removal_and_is_forgotten_then() -> None:
    node = leading()
    index = node.engine.propose(entry_with("ab"))
    node.turn()
    assert [entry.index for append in node.appends_to("c") for entry in append.entries][-1:] == [index]
    node.stored_by(index, "c")
    assert node.engine.commit_index == index - 1, "it does not count"
    node.stored_by(index, "b")
    assert node.engine.commit_index == index
    node.configurations.applied(index)
    node.turn()
    assert set(node.engine.progress) == {"b"}


def test_deleted_configuration_does_not_count() -> None:
    node = OurNode(0)
    node.engine.receive("b", Append(9, 1, 1, 0, [LogEntry(entry_with("abcde"), 2, 9)]))
    assert set(node.engine.progress) == {"b", "c", "d", "e"}
    node.engine.receive("c", Append(10, 1, 1, 0, [LogEntry(NO_OP, 2, 10)]))
    assert set(node.engine.progress) == {"b", "c"}
    assert node.configurations.newest == configuration_of("abc")


def test_node_with_a_foreign_directory_does_not_campaign() -> None:
    node = OurNode(0)
    node.configurations.find(replace(configuration_of("abc"), cluster=b"c" * 16), 1, [])
    node.wait(10.0)
    assert node.sent(PreVoteRequest)
    node.engine.outbox.clear()
    vacated = node.configurations.newest.vacated("a", directory_of("a")).members
    others = Configuration.of(8, [replace(member, is_voter=True) for member in vacated], b"c" * 16)
    node.configurations.find(others.joined("a", b"x" * 16, PeerAddress("a", 1), Versions(8, 8)), 1, [])
    node.wait(10.0)
    assert node.sent(PreVoteRequest) == []


def test_non_member_may_lead_and_gets_no_entries() -> None:
    node = OurNode(0)
    node.engine.follow_configuration(["g"])
    node.engine.non_member_connected()
    node.engine.receive("g", Append(9, 1, 1, 0, [LogEntry(NO_OP, 2, 9)]))
    assert node.engine.leader == "g"
    node.engine.follow_configuration([])
    assert node.engine.leader is None
    node.lead()
    node.engine.follow_configuration(["g"])
    node.engine.outbox.clear()
    node.engine.propose(b"\0whatever")
    node.turn()
    assert node.appends_to("b")
    assert node.appends_to("g") == []


def test_acknowledgement_of_a_lost_directory_does_not_count() -> None:
    node = leading()
    index = node.engine.propose(b"\0whatever")
    node.stored_by(index, "c")
    vacated = node.configurations.newest.vacated("c", directory_of("c"))
    node.engine.propose(make_configuration(0, vacated))
    assert node.engine.acknowledged_index("c") == 0
    assert node.configurations.membership.learners == {"c"}


def test_origin_of_an_entry_learns_its_commit_before_its_peers() -> None:
    node = leading()
    index = node.engine.propose(NO_OP)
    node.stored_by(index, "b", "c")
    node.wait(0.05)
    node.engine.outbox.clear()

    def commit() -> int:
        index = node.engine.propose(NO_OP)
        node.turn()
        node.engine.outbox.clear()
        node.journal.sync_now()
        node.engine.synced()
        for peer in PEERS:
            node.engine.receive(peer, appended(node.engine.term, index + 1))
        assert node.engine.wants_turn
        return index

    def reported_to(peer: str) -> list[int]:
        return [append.commit_index for append in node.appends_to(peer)]

    index = commit()
    node.turn()
    assert (reported_to("b"), reported_to("c")) == ([], [])
    assert not node.engine.wants_turn
    assert node.engine.resume_s - node.world.now_s == pytest.approx(NOTICE_S, abs=1e-4)
    node.world.now_s = node.engine.resume_s
    node.turn()
    assert (reported_to("b"), reported_to("c")) == ([index], [index])

    index = commit()
    node.engine.notify_soon(["b", "a"])
    node.turn()
    assert (reported_to("b"), reported_to("c")) == ([index], [])

    index = commit()
    node.turn()
    node.engine.propose(NO_OP)
    node.turn()
    assert (reported_to("b"), reported_to("c")) == ([index], [index]), "with the next append"
    assert node.engine.resume_s == math.inf


def test_message_without_effect_on_a_majority_needs_no_turn() -> None:
    node = leading()
    index = node.engine.propose(NO_OP)
    node.turn()
    node.engine.receive("b", appended(node.engine.term, index + 1))
    assert not node.engine.wants_turn, "its own disk has not got the entry"
    node.journal.sync_now()
    node.engine.synced()
    assert node.engine.wants_turn
    node.turn()
    assert node.engine.commit_index == index
    node.engine.receive("c", appended(node.engine.term, index + 1))
    assert not node.engine.wants_turn
