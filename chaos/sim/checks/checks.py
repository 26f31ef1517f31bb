"""Checks of the cluster in every run: leaders, votes, log matching, commits, states, clocks.

Invariant: a check observes and changes no node. A fact that a node has shown - a committed entry, an applied batch, a
state at an index - must hold for all nodes and all their later starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

from chaos.sim.checks.campaigns import Campaigns
from chaos.sim.world.compared_machines import MACHINES, TAG, Applied, Program, WatchedMachine
from chaos.sim.world.world import EPOCH_MS
from cluster.configuration.configuration import Versions, is_configuration, read_configuration
from cluster.log.hardstate import VoterStatus
from cluster.log.segment import CorruptJournal
from cluster.raft.cluster_clock import SLOWER
from cluster.raft.elections import Role
from cluster.raft.messages import Memory, Status, Vote, VoteRequest, decode, encode
from cluster.raft.promises import NOTHING, Promise

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.sim.world.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world.world import SimulatedWorld
    from cluster.configuration.configuration import Configuration
    from cluster.configuration.quorum import Membership
    from cluster.machine import Machine

DIGEST_EVERY = 8
"""States are compared at each multiple of this index, because a difference that matters lasts."""

BELIEFS_EVERY = 4
"""Steps of a leader between two checks of its progress table; each commit is checked too."""

READ_MS = 0.1
"""Milliseconds by which a node's clock may be ahead of the world's clock.

A node's clock advances by `TICK_S` at each reading, even while the world stands still (seed 12550247). Sums of seconds
differ too: a millisecond begins at 33.25 s and at 33.249999999999986 s (seed 703437).
"""
MINORITY_GRACE_S = 4.0
"""Seconds in which a leader without a majority steps down, and messages in flight at the cut have arrived."""
NO_STATUS = Status(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
KINDS_THAT_REMEMBER = [encode(message)[0][0] for message in (Memory(0, 0, 0), NO_STATUS)]
"""First bytes of the frames that tell a node what its peer remembers of it, and knows to be committed."""
KINDS_OF_VOTES = [encode(message)[0][0] for message in (Vote(0), VoteRequest(0, 0, 0))]
"""First bytes of the frames that tell of a vote for a peer or for the sender."""


class ViolationError(BaseException):
    """A property does not hold. Not an Exception, so that no node can catch it."""


class Committed(NamedTuple):
    term: int
    checksum: int
    committed_in: int
    """Term of the first node seen to commit the entry: leaders of later terms must have it."""


class AppliedListener(Protocol):
    """Called once for each step in log order; `machine` is the first machine that shows it."""

    def batch(
        self,
        machine: Any,
        origin: str,
        index: int,
        ordinal: int,
        time_ms: int,
        payload: memoryview,
        effects: Sequence[Any],
    ) -> None: ...

    def outage(self, machine: Any, length_ms: int) -> None: ...

    def entry_ended(self, machine: Any, time_ms: int, effects: Sequence[Any]) -> None: ...

    def origin_down(self, machine: Any, origin: str, time_ms: int, effects: Sequence[Any]) -> None: ...


@dataclass(slots=True)
class _Seen:
    """The last observed state of a node's process start."""

    incarnation: int = 0
    commit_index: int = 1
    led_term: int = 0
    led_since_s: float = 0.0
    term: int = 0
    vote: str | None = None
    voter_status: VoterStatus = VoterStatus.BLANK
    installs: int = 0
    configured_at: int = 1
    """The index of the newest configuration in the node's log."""
    steps: int = 0


class Damage(NamedTuple):
    """Damage of a node's disk, and the node's promise before it."""

    incarnation: int
    owed_index: int
    """The node may have acknowledged entries up to here, and this may have committed them."""


class Checks:
    """The checks of every run."""

    listener: AppliedListener | None = None

    def __init__(self, world: SimulatedWorld, machine: Callable[[], Machine]) -> None:
        self.committed: list[Committed] = []
        """Committed entries in order of index, from 2: entry 1 is the same empty entry in every log."""
        self.history: list[Applied] = []
        self.batches: dict[tuple[int, int], bytes] = {}
        """Submitted payloads, by index of the entry and ordinal of the batch in it."""
        self.replays_to: dict[str, int] = {}
        """Index of each node's damaged checkpoint.

        Until the node has replayed to this index, its state and its snapshots may refer to messages that were dead and
        removed before.
        """
        self.elections = 0
        self.entry_bytes_max = 0
        """Bytes of the largest committed entry."""
        self.confirms = 0
        self.reads = 0
        """Number of reads that were answered without an entry."""
        self.installs = 0
        self.repairs = 0
        self.voters_max = 0
        """The largest number of voters in a committed configuration."""
        self._world = world
        self._new_machine = machine
        self._leaders: dict[int, str] = {}
        self._digests: dict[int, int] = {}
        self._states: dict[int, int] = {}
        self._positions: dict[int, int] = {1: 0}
        """Number of machine steps after each entry."""
        self._counted: dict[tuple[str, int], int] = {}
        self._majority_s = 0.0
        """Total seconds with a majority, up to the last update."""
        self._majority_since_s: float | None = None
        """When the present majority was last counted; None without a majority."""
        self._time_ms = 0
        self._time_s = 0.0
        """When the first entry with this time took effect, in the world's seconds."""
        self._skews_ms: dict[str, int] = {}
        """Largest lead of each node's clock, in ms."""
        self._seen: dict[str, _Seen] = {}
        self._damage: dict[str, Damage] = {}
        self._rolled_back: dict[str, Promise] = {}
        """For each node with an older directory: the term and the end of the log that it must have again."""
        self._vouched: dict[str, int] = {}
        """Index up to which each voter has reported its log as synced."""
        self._log_ends: dict[str, int] = {}
        """End of each node's log when it was last not adopting a new log."""
        self._forgotten_terms: dict[str, int] = {}
        self._terms: dict[str, int] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._cast: dict[tuple[str, int], dict[str, None]] = {}
        """Every voter that has ever voted for a node in a term."""
        self._heard_votes: set[tuple[str, int]] = set()
        """Voters and terms of the votes that any peer has heard of."""
        self._forgotten_votes: set[tuple[str, int]] = set()
        """Voters and terms of the votes in whose terms the directories were put back."""
        self._ids: dict[str, bytes] = {}
        """The id of each node's last data directory."""
        self.configuration: Configuration | None = None
        """The last committed configuration; None while the nodes' files count."""
        self._first_configuration: Configuration | None = None
        self._electorates: dict[Membership, None] = {}
        """All memberships so far."""
        self._lost_campaigns: dict[tuple[str, int], None] = {}
        """Campaigns of lost directories, by name and term."""
        self._campaigns = Campaigns()
        self._heard: dict[str, set[tuple[str, int]]] = {}
        """Senders and kinds (first bytes) of the frames that each node's process has received."""
        self._vain_campaigns: dict[bytes, int] = {}
        """Number of campaigns of each directory since its removal."""
        self._minority_since_s: dict[str, float] = {}
        self._minority_terms: dict[str, int] = {}

    def continued(self, index: int) -> Checks:
        """Return the checks of a new cluster that continues from the state at an entry and skips the next index."""
        new = Checks(self._world, self._new_machine)
        new.committed = [*self.committed[: index - 1], Committed(0, 0, 0)]
        steps = self._positions[max((known for known in self._positions if known <= index), default=1)]
        new.history = self.history[:steps]
        new.batches = self.batches
        new.replays_to = dict.fromkeys(self._cluster.founders, max(self.replays_to.values(), default=0))
        new._states = {position: digest for position, digest in self._states.items() if position <= steps}
        new._skews_ms, new._electorates = dict(self._skews_ms), dict(self._electorates)
        return new

    def watch(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.clocks_changed()

    def machine(self, program: Program) -> WatchedMachine:
        return MACHINES[program](self._new_machine(), self)

    def fail(self, finding: str) -> None:
        raise ViolationError(f"at {self._world.now_s:.3f} s: {finding} [{self._cluster.describe()}]")

    # A node's process

    def started(self, node: SimulatedNode) -> None:
        engine = node.group.engine
        term = engine.term
        finds_damage = self.may_find_damage(node)
        self._campaigns.begin(node.name)
        self._heard[node.name] = set()
        self._begin_directory(node)
        if node.voter_status is VoterStatus.BLANK and self.may_find_damage(node):
            forgotten = self._terms.pop(node.name, 0)
            self._forgotten_terms[node.name] = max(forgotten, self._forgotten_terms.get(node.name, 0))
        is_older = node.name in self._rolled_back
        if term < self._terms.get(node.name, 0) and not is_older:
            self.fail(f"{node.name} has forgotten term {self._terms[node.name]}")
        vote = self._votes.get((node.name, term))
        has_forgotten = is_older or term <= self._forgotten_terms.get(node.name, 0)
        if vote not in (None, engine.voted_for) and not has_forgotten:
            self.fail(f"{node.name} has forgotten that it voted for {vote} in term {term}")
        self._forget_campaigns(node)
        before = self._seen.get(node.name)
        loses = before is not None and before.voter_status is VoterStatus.VOTER is not node.voter_status
        if loses and not finds_damage:
            self.fail(f"{node.name} has given its log up, and nothing was done to that")
        vouched_index = min(self._vouched.get(node.name, 0), len(self.committed) + 1)
        if node.voter_status is VoterStatus.VOTER and node.group.journal.last_index < vouched_index:
            self.fail(f"{node.name} is a voter without entry {vouched_index}, which was on its disk")
        damage = self._damage.get(node.name, Damage(0, 0))
        unnoticed = damage.incarnation + 1 == node.incarnation and node.voter_status is VoterStatus.VOTER
        if unnoticed and node.group.journal.last_index < damage.owed_index:
            self.fail(f"{node.name} is a voter without entry {damage.owed_index}, which it had acknowledged")
        self._check_version(node)
        self._terms[node.name] = term
        self._seen[node.name] = _Seen(
            node.incarnation, term=term, vote=engine.voted_for, voter_status=node.voter_status
        )
        if engine.applied_index > 1:
            self._check_state(node, engine.applied_index)
        self.topology_changed()

    def _begin_directory(self, node: SimulatedNode) -> None:
        """Forget a node's promises if it has a new id and members are known by their ids.

        A directory that has promised nothing gets a new id at each start and keeps its files, damaged or not.
        """
        name, member_id = node.name, node.group.members.id
        is_another = self._ids.get(name, member_id) != member_id
        self._ids[name] = member_id
        if self.configuration is None or not is_another:
            return
        damage = self._damage.pop(name, None)
        if damage is not None and node.disk.damaged_files():
            self._damage[name] = damage._replace(owed_index=0)
        for known in (
            self._terms,
            self._forgotten_terms,
            self._vouched,
            self._log_ends,
            self._rolled_back,
        ):
            known.pop(name, None)
        # Voters may still receive vote requests of the lost directory; such a vote cannot elect a leader.
        self._lost_campaigns |= {
            (voter, term): None for (voter, term), vote in self._votes.items() if voter == vote == name
        }
        self._votes = {(voter, term): vote for (voter, term), vote in self._votes.items() if voter != name}

    def received(self, node: SimulatedNode, peer: str, frame: bytes) -> None:
        """Observe a frame from a peer before the node handles it."""
        self._campaigns.received(node.name, node.group.configurations.membership, peer, frame)
        self._heard[node.name].add((peer, frame[0]))
        if frame[0] in KINDS_OF_VOTES:
            message = decode(frame)
            assert isinstance(message, Vote | VoteRequest)
            self._heard_votes.add((peer, message.term))

    def resumed(self, node: SimulatedNode) -> None:
        """Check the state of a node that has installed a snapshot."""
        self._check_state(node, node.group.engine.applied_index)

    def node_failed(self, node: SimulatedNode, error: BaseException) -> None:
        if isinstance(error, ViolationError):
            raise error
        raise ViolationError(f"at {self._world.now_s:.3f} s: {node.name} failed: {error!r}") from error

    def found_no_space(self, node: SimulatedNode, error: OSError) -> None:
        """Handle a start without disk space. A start needs no space unless a file must be rebuilt."""
        if not self.may_find_damage(node):
            self.node_failed(node, error)

    # Damage

    def damaged(self, node: SimulatedNode) -> None:
        """Record damage of a node's durable data. A running node may not notice it.

        Only a minority is damaged at a time, see `may_be_damaged`.
        """
        synced_index = node.group.journal.synced_index if node.has_started else 0
        self._vouched.pop(node.name, None)
        known = self._damage.get(node.name, Damage(0, 0))
        owed_index = max(known.owed_index, min(synced_index, len(self.committed) + 1))
        self._damage[node.name] = Damage(node.incarnation - node.up, owed_index)

    def rolled_back(self, node: SimulatedNode) -> None:
        """Record that a node's directory is as it was earlier. Only the other nodes remember what it lacks."""
        self._vouched.pop(node.name, None)
        self._damage[node.name] = Damage(node.incarnation - node.up, 0)
        engine, journal = node.group.engine, node.group.journal
        # It may have acknowledged entries that no leader has committed yet.
        end = max(len(self.committed) + 1, journal.synced_index)
        self._rolled_back[node.name] = Promise(engine.term, end)
        self._forgotten_votes.add((node.name, engine.term))
        # Its checkpoints are older, too.
        self.replays_to[node.name] = max(engine.applied_index, self.replays_to.get(node.name, 0))

    def has_heard_memories(self, node: SimulatedNode, peers: Sequence[str]) -> bool:
        """Return whether this process has heard from all these peers what they remember, see `KINDS_THAT_REMEMBER`."""
        return {(peer, kind) for peer in peers for kind in KINDS_THAT_REMEMBER} <= self._heard[node.name]

    def know_all_commits(self, names: Sequence[str]) -> bool:
        """Return whether any of these nodes knows that the last committed entry is committed."""
        nodes = (node for node in self._cluster.nodes if node.name in names)
        return any(node.group.engine.commit_index > len(self.committed) for node in nodes)

    def conflict_with_commits(self, names: Sequence[str]) -> bool:
        """Return whether the log of any of these nodes has another entry in the place of the last committed entry."""
        index = len(self.committed) + 1
        journals = [node.group.journal for node in self._cluster.nodes if node.name in names]
        return bool(self.committed) and any(
            journal.first_index <= index <= journal.last_index
            and journal.term_at(index) != self.committed[-1].term
            for journal in journals
        )

    def is_repaired(self, node: SimulatedNode) -> bool:
        """Return whether a node whose directory was put back has everything again."""
        return not self._is_damaged(node)

    def gave_log_up(self, node: SimulatedNode) -> None:
        """Check that a majority of peers holds the log that a node discards for lack of space, and count it as lost."""
        journal = node.group.journal
        whole = [
            other
            for other in self._cluster.nodes
            if other is not node
            and other.has_started
            and other.voter_status is VoterStatus.VOTER
            and other.group.journal.synced_index >= min(journal.synced_index, len(self.committed) + 1)
        ]
        names = [other.name for other in whole]
        if not node.group.configurations.membership.is_majority(names):
            self.fail(
                f"{node.name} has given its log up, and only {', '.join(names) or 'nobody'} has what is in it"
            )
        self.damaged(node)

    def checkpoint_damaged(self, node: SimulatedNode, index: int) -> None:
        """Record a damaged checkpoint: a start may return to the checkpoint before it (see `replays_to`)."""
        self.replays_to[node.name] = max(index, self.replays_to.get(node.name, 0))

    def is_replaying(self, node: SimulatedNode) -> bool:
        """Return whether a node applies entries again, from an older checkpoint.

        Its log may lack messages of its state, because housekeeping removes those that were settled before the newest
        checkpoint.
        """
        return node.group.engine.applied_index < self.replays_to.get(node.name, 0)

    def may_be_damaged(self, node: SimulatedNode) -> bool:
        """Return whether the undamaged nodes without this node are a majority.

        Then no promise depends on damaged nodes only.
        """
        whole = [
            other.name
            for other in self._cluster.nodes
            if other is not node and other.voter_status is VoterStatus.VOTER and not self._is_damaged(other)
        ]
        return all(
            configuration.membership.is_majority(
                [name for name in whole if configuration.has(name, self._ids.get(name, b""))]
            )
            for configuration in self._about_to_count(node)
        )

    def counts(self, node: SimulatedNode) -> bool:
        """Return whether this node's directory belongs to a voter, in any configuration that counts."""
        if not node.has_id:
            return False  # it was emptied, and `_ids` still has the former directory's id
        member_id = self._ids.get(node.name, b"")
        return any(each.cluster and each.has_voter(node.name, member_id) for each in self._counting())

    def _counting(self) -> list[Configuration]:
        """Return the configurations that any node counts votes by, or may count by after hearing from a leader."""
        by_lists = self.configuration is None
        held = [
            node.group.configurations
            for node in self._cluster.nodes
            if node.has_started and not (by_lists and (node.misconfigured or node.joins))
        ]
        newest = {id(each.newest): each.newest for each in held if each.is_settled or by_lists}
        if self.configuration is not None:
            newest[id(self.configuration)] = self.configuration
        return list(newest.values())

    def _about_to_count(self, damaged: SimulatedNode) -> list[Configuration]:
        """Return the counting configurations and their possible successors, if this node is damaged too.

        Requested removals may be carried out. A leader that does not know of the damage may promote a damaged learner
        (birth 104005). An undamaged learner has the log when it is promoted.
        """
        found = self._counting()
        for node in self._cluster.nodes:
            if node.may_be_removed:
                found += [_without(each, node.name) for each in found]
            if node is damaged or self._is_damaged(node):
                found += [each.promoted(node.name) for each in found if _may_be_promoted(each, node.name)]
        return found

    def may_find_damage(self, node: SimulatedNode) -> bool:
        return node.name in self._damage

    def _is_damaged(self, node: SimulatedNode) -> bool:
        damage = self._damage.get(node.name)
        if damage is None:
            return False
        owed = self._rolled_back.get(node.name, NOTHING)
        runs = node.up and node.has_started and node.runtime.alive
        whole = (
            runs
            and node.incarnation > damage.incarnation
            and node.voter_status is VoterStatus.VOTER
            and not node.group.fail_stop.damage
            and node.group.engine.term >= owed.term
            and node.group.journal.synced_index >= owed.index
        )
        # The synced index of an adopted log is known only when that log is durable and the damaged log is removed.
        if whole and node.group.journal.synced_index and not node.disk.damaged_files():
            del self._damage[node.name]
            self._rolled_back.pop(node.name, None)
            return False
        return True

    # After each step of a node

    def observe(self, node: SimulatedNode) -> None:
        """Check a node; called after each of its steps."""
        seen = self._seen.get(node.name)
        if seen is None or seen.incarnation != node.incarnation or not node.runtime.alive:
            return
        group = node.group
        engine = group.engine
        seen.steps += 1
        is_new_term = engine.term != seen.term or engine.voted_for != seen.vote
        if is_new_term:
            self._new_term(node, seen)
        voter_status = group.rejoin.voter_status
        if voter_status is not seen.voter_status:
            self.repairs += seen.voter_status is VoterStatus.LEARNER and voter_status is VoterStatus.VOTER
            seen.voter_status = voter_status
            self._forget_campaigns(node)
        # The journal reports 0 for a log that is being adopted, until it is durable: until then the old log counts.
        synced_index = group.journal.synced_index
        if synced_index:
            self._log_ends[node.name] = group.journal.last_index
        if not self._is_damaged(node):
            self._vouched[node.name] = synced_index or self._vouched.get(node.name, 0)
        leads = engine.is_leader
        # Each campaign begins a new term.
        if leads or is_new_term:
            self._check_office(node, seen, leads=leads)
        if group.snapshots_installed > seen.installs:
            self.installs += 1
            seen.installs = group.snapshots_installed
            # The sender of the snapshot is unknown: it may be a node with a damaged checkpoint that has to replay.
            self.replays_to[node.name] = max(self.replays_to.values(), default=0)
        if engine.applied_index > group.journal.last_index:
            self.fail(f"{node.name} has deleted entry {engine.applied_index}, which it had applied")
        commit_index = engine.commit_index
        if leads and (commit_index > seen.commit_index or seen.steps % BELIEFS_EVERY == 0):
            self._check_beliefs(node)
        if (hopeless := group.rejoin.why_hopeless()) is not None:
            self.fail(f"{node.name} says what is never so here: {hopeless}")
        if commit_index > seen.commit_index:
            if leads:
                self._check_stored(node, commit_index)
            seen.commit_index = self._check_committed(node, seen.commit_index + 1, commit_index)
        configured_at = group.configurations.newest_index
        if leads and configured_at > seen.configured_at:
            self._check_change(node, seen.configured_at, configured_at)
        seen.configured_at = configured_at

    def _check_change(self, leader: SimulatedNode, before: int, index: int) -> None:
        """Check that the previous change and an entry of the leader's term are committed before the change at `index`.

        Otherwise two majorities may have no voter in common (Raft thesis, 4.1, as corrected in 2015).
        """
        engine, journal = leader.group.engine, leader.group.journal
        if journal.term_at(index) != engine.term:
            return  # the change came with the log of an earlier leader
        last = engine.commit_index
        if before > last:
            self.fail(f"{leader.name} changes the members twice at once, with entries {before} and {index}")
        if journal.term_at(min(last, index - 1)) != engine.term:
            self.fail(f"{leader.name} changes the members before it has committed anything of its term")

    def _check_office(self, node: SimulatedNode, seen: _Seen, *, leads: bool) -> None:
        """Check that only a voter leads or campaigns."""
        role = Role.LEADER if leads else node.group.engine.role
        if role is Role.FOLLOWER:
            return
        if seen.voter_status is not VoterStatus.VOTER:
            self.fail(f"{node.name} is a {seen.voter_status.name.lower()} and a {role.name.lower()}")
        term = node.group.engine.term
        if leads and term != seen.led_term:
            seen.led_term = term
            seen.led_since_s = self._world.now_s
            self._new_leader(node, term)
        self._check_minority(node, role)

    def _new_term(self, node: SimulatedNode, seen: _Seen) -> None:
        """Check that terms only grow, and that a node votes for a single candidate in a term."""
        engine = node.group.engine
        seen.term, seen.vote = engine.term, engine.voted_for
        self._terms[node.name] = engine.term
        vote = engine.voted_for
        if vote is None or (seen.voter_status is VoterStatus.BLANK and engine.role is Role.FOLLOWER):
            return  # a node that rises from blank adopts a vote that it may have given
        if node.name in self._rolled_back and vote == node.name and engine.role is Role.FOLLOWER:
            # So does a node whose directory was put back: its vote in this term is used up, whoever got it.
            self._votes[node.name, engine.term] = vote
            return
        self._forget_unheard_vote(node, engine.term)
        self._cast.setdefault((vote, engine.term), {})[node.name] = None
        if self._votes.setdefault((node.name, engine.term), vote) != vote:
            self.fail(f"{node.name} votes for {vote} in term {engine.term}, and did for another")
        has_campaigned = self._votes.get((vote, engine.term)) == vote
        if not (has_campaigned or (vote, engine.term) in self._lost_campaigns):
            self.fail(f"{node.name} votes for {vote} in term {engine.term}, which does not campaign in it")
        self._check_may_vote(node, vote)
        if vote == node.name:
            self._check_may_campaign(node)

    def _forget_unheard_vote(self, node: SimulatedNode, term: int) -> None:
        """Let a node that was put back vote again in a term in which no peer has heard of its vote."""
        key = node.name, term
        if key in self._forgotten_votes - self._heard_votes:
            self._forgotten_votes.discard(key)
            vote = self._votes.pop(key, None)
            if vote is not None:
                self._cast[vote, term].pop(node.name, None)

    def _check_may_campaign(self, node: SimulatedNode) -> None:
        """Check that a node campaigns only after a won pre-vote or at its leader's request.

        A removed directory must not campaign, even if it does not know of its removal. Pre-votes in flight at the
        removal may still cause a single campaign.
        """
        if not self._campaigns.take(node.name, node.group.configurations.membership):
            self.fail(f"{node.name} campaigns without a pre-vote")
        member_id = node.group.members.id
        if self.configuration is None or not self.configuration.is_removed(member_id):
            return
        self._vain_campaigns[member_id] = self._vain_campaigns.get(member_id, 0) + 1
        if self._vain_campaigns[member_id] > 1:
            self.fail(f"{node.name} campaigns though it was removed")

    def _forget_campaigns(self, node: SimulatedNode) -> None:
        """Let a node that lost its memory take back a vote for itself, if no peer has voted for it.

        No peer will vote for it later: its requests were lost with its connections, and each peer that received one has
        reported that term (rejoin.py). `_new_term` checks that the node gets no vote in that term without a new
        campaign.
        """
        if node.voter_status is VoterStatus.BLANK:
            return
        name, term = node.name, node.group.engine.term
        for later in range(term + 1, self._forgotten_terms.get(name, 0) + 1):
            vote = self._votes.pop((name, later), name)
            if vote != name:
                self.fail(f"{name} has forgotten that it voted for {vote} in term {later}")
            for other in self._cluster.names:
                if self._votes.get((other, later)) == name:
                    self.fail(f"{name} has forgotten term {later}, in which {other} voted for it")

    def _check_may_vote(self, node: SimulatedNode, vote: str) -> None:
        """Check that only a voter votes, and only with every entry that it has acknowledged."""
        if node.voter_status is not VoterStatus.VOTER:
            self.fail(f"{node.name} is a {node.voter_status.name.lower()} and votes for {vote}")
        damage = self._damage.get(node.name)
        if damage is not None and node.incarnation > damage.incarnation:
            journal = node.group.journal
            if journal.last_index < damage.owed_index:
                self.fail(f"{node.name} votes for {vote} without entry {damage.owed_index}, which it had")

    def _new_leader(self, node: SimulatedNode, term: int) -> None:
        """Check that a term has at most one leader, elected by a majority, with every committed entry."""
        self.elections += 1
        self._world.trace(b"leader %s %d" % (node.name.encode(), term))
        other = self._leaders.setdefault(term, node.name)
        if other != node.name:
            self.fail(f"{other} and {node.name} both lead term {term}")
        voted = self._cast.get((node.name, term), {})
        if not node.group.configurations.membership.is_majority(voted):
            self.fail(f"{node.name} leads term {term} by the votes of {', '.join(voted)}")
        journal = node.group.journal
        for index in range(max(journal.first_index, 2), len(self.committed) + 2):
            committed = self.committed[index - 2]
            if committed.committed_in >= term:
                break
            if index > journal.last_index:
                self.fail(f"{node.name} leads term {term} without entry {index}, which is committed")
            if journal.term_at(index) != committed.term:
                self.fail(f"{node.name} leads term {term} with another entry {index} than the committed one")

    def _check_beliefs(self, leader: SimulatedNode) -> None:
        """Check that entries which a leader counts as acknowledged are on the follower's disk and equal its own.

        A follower in an earlier term has acknowledged nothing. A follower in a later term may have a new log by now. A
        follower that has lost its log does not count before it is a voter again. A follower that adopts a new log
        vouches for the synced part of its old log, at most for all of it, because a sync may have been under way.
        """
        engine, journal = leader.group.engine, leader.group.journal
        members = leader.group.configurations.newest
        for node in self._cluster.nodes:
            index = engine.acknowledged_index(node.name)
            if not self._means(members, node.name):
                continue
            if not index or not (node.up and node.has_started) or node.group.engine.term > engine.term:
                continue
            is_voter = node.voter_status is VoterStatus.VOTER
            if node.name in self._rolled_back or (node.name in self._damage and not is_voter):
                continue
            there = node.group.journal
            synced_index = there.synced_index or self._log_ends.get(node.name, 0)
            if node.group.engine.term < engine.term or synced_index < index:
                self.fail(f"{leader.name} believes that {node.name} has synced entry {index}")
            if index < max(there.first_index, journal.first_index):
                continue
            if index > journal.last_index or there.term_at(index) != journal.term_at(index):
                self.fail(f"{leader.name} believes that {node.name} has its entry {index}")

    def _means(self, configuration: Configuration, name: str) -> bool:
        """Return whether a configuration refers to the present directory of the node of that name.

        A configuration of names only means the directories that existed before the first configuration with ids.
        """
        named = configuration if configuration.cluster else self._first_configuration or configuration
        return named.has(name, self._ids.get(name, b""))

    def _check_stored(self, leader: SimulatedNode, index: int) -> None:
        """Check that a majority of the voters has synced the entries that a leader commits, except damaged voters."""
        configuration = leader.group.configurations.newest
        holders = [
            voter
            for voter in configuration.membership.voters
            if self._vouched.get(voter, 0) >= index
            or voter in self._damage
            or not self._means(configuration, voter)
        ]
        if not configuration.membership.is_majority(holders):
            self.fail(f"{leader.name} commits entry {index}, which of the voters only {sorted(holders)} have")

    def _check_committed(self, node: SimulatedNode, first: int, last: int) -> int:
        """Check log matching of committed entries as far as the log reaches back; return the last readable index."""
        journal = node.group.journal
        if last > journal.last_index:
            self.fail(f"{node.name} has committed entry {last}, which it does not have")
        if journal.first_index > len(self.committed) + 2:
            self.fail(
                f"the log of {node.name} begins at {journal.first_index}, before which not all was committed"
            )
        for index in range(max(first, journal.first_index), last + 1):
            try:
                payload = journal.read(index)
            except CorruptJournal as damage:
                if not self.may_find_damage(node):
                    self.fail(f"{node.name} cannot read entry {index}: {damage}")
                return index - 1
            record = Committed(journal.term_at(index), crc32(payload), node.group.engine.term)
            if index - 2 == len(self.committed):
                self.committed.append(record)
                if is_configuration(payload):
                    before, self.configuration = self.configuration, read_configuration(payload)
                    self._check_maintenance(before, self.configuration)
                    self._first_configuration = self._first_configuration or self.configuration
                    self.voters_max = max(self.voters_max, len(self.configuration.membership.voters))
                self.entry_bytes_max = max(self.entry_bytes_max, len(payload))
            elif self.committed[index - 2][:2] != record[:2]:
                self.fail(f"{node.name} has committed another entry {index} than was committed before")
        return last

    def _check_maintenance(self, before: Configuration | None, after: Configuration) -> None:
        """Check that no drain or removal leaves only voters under maintenance; the loss of a directory may."""
        if before is None or any(member.is_voter and not member.is_drained for member in after.members):
            return
        drained = [member.name for member in after.members if member.is_drained]
        begun = [name for name in drained if (was := before.member(name)) and not was.is_drained]
        removed = [name for name in before.membership.voters if after.member(name) is None]
        if begun or removed:
            self.fail(f"{', '.join(drained)} are all under maintenance, so nobody serves clients")

    def _check_minority(self, node: SimulatedNode, role: Role) -> None:
        """H9: check that a node without a majority for a while neither leads nor campaigns.

        Votes in flight may still make it leader for a moment, or cause a single campaign.
        """
        since_s = self._minority_since_s.get(node.name)
        if since_s is None or self._world.now_s - since_s < MINORITY_GRACE_S:
            return
        if role is Role.LEADER and self._world.now_s - self._seen[node.name].led_since_s > MINORITY_GRACE_S:
            self.fail(f"{node.name} leads though cut off from the majority since {since_s:.3f} s")
        term = node.group.engine.term
        if term - self._minority_terms.setdefault(node.name, term) > 1:
            self.fail(f"{node.name} campaigns though cut off from the majority since {since_s:.3f} s")

    def majority_s(self) -> float:
        """Return the seconds in which a running majority could reach each other, so that clients could act."""
        since_s = self._majority_since_s
        return self._majority_s + (0.0 if since_s is None else self._world.now_s - since_s)

    def topology_changed(self) -> None:
        """Record which nodes are cut off from the majority, and since when."""
        self._majority_s, self._majority_since_s = self.majority_s(), None
        cluster = self._cluster
        awake = [node for node in cluster.nodes if node.up and not node.runtime.paused]
        configurations = self._counting()
        for node in cluster.nodes:
            reached = [
                peer.name for peer in awake if peer is node or cluster.network.reachable(node.name, peer.name)
            ]
            is_minority = not any(each.membership.is_majority(reached) for each in configurations)
            if node in awake and not is_minority:
                self._majority_since_s = self._world.now_s
            if node in awake and configurations and is_minority:
                self._minority_since_s.setdefault(node.name, self._world.now_s)
            else:
                self._minority_since_s.pop(node.name, None)
                self._minority_terms.pop(node.name, None)

    # Applied steps: the `Witness` of the machines

    def happened_first(self, machine: WatchedMachine, record: Applied) -> bool:
        """Return whether this is the first machine at this step; fail if an earlier machine did a different step."""
        position = machine.position
        machine.position = position + 1
        if position == len(self.history):
            self.history.append(record)
            return True
        if self.history[position] != record:
            self.fail(f"step {position} was {self.history[position]} elsewhere and is {record} here")
        return False

    def batch_applied(
        self, inner: Machine, record: Applied, payload: memoryview, effects: Sequence[Any]
    ) -> None:
        origin, index, ordinal, time_ms, *_ = record
        self._count_batch(origin, *TAG.unpack_from(payload))
        self.batches[index, ordinal] = bytes(payload)
        if self.listener is not None:
            self.listener.batch(inner, origin, index, ordinal, time_ms, payload[TAG.size :], effects)

    def outage(self, inner: Machine, length_ms: int) -> None:
        if self.listener is not None:
            self.listener.outage(inner, length_ms)

    def entry_ended(self, inner: Machine, time_ms: int, effects: Sequence[Any]) -> None:
        self._time_passed(time_ms)
        if self.listener is not None:
            self.listener.entry_ended(inner, time_ms, effects)

    def origin_down(self, inner: Machine, origin: str, time_ms: int, effects: Sequence[Any]) -> None:
        if self.listener is not None:
            self.listener.origin_down(inner, origin, time_ms, effects)

    def _count_batch(self, origin: str, client: int, number: int) -> None:
        """Check that each client's batches take effect once and in order."""
        expected = self._counted.get((origin, client), 0) + 1
        if number != expected:
            self.fail(f"batch {number} of client {client} at {origin} took effect, batch {expected} was due")
        self._counted[origin, client] = number

    def _time_passed(self, time_ms: int) -> None:
        """Check that the time of entries never goes back, and that only a majority's clocks put it forward."""
        if time_ms < self._time_ms:
            self.fail(f"an entry of {time_ms} ms follows one of {self._time_ms} ms")
        self._check_clocks(time_ms)
        self._time_ms, self._time_s = time_ms, self._world.now_s

    def _check_clocks(self, time_ms: int) -> None:
        """Check that some majority's clocks have reached an entry's time, so that no message expires early.

        It may have been a majority of earlier voters, because the time does not go back when the voters change.
        """
        self._electorates.update((each.membership, None) for each in self._counting())
        ahead_ms = time_ms - EPOCH_MS - self._world.now_s * 1000
        ahead_ms -= max(voting.reached(self._skews_ms) for voting in self._electorates)
        if ahead_ms > READ_MS:
            self.fail(f"an entry of {time_ms} ms is {ahead_ms:.1f} ms ahead of the clocks of any majority")

    def clocks_changed(self) -> None:
        """Record each clock's largest lead, because a node may follow a peer's clock reading from a while ago."""
        for node in self._cluster.nodes:
            self._skews_ms[node.name] = max(
                node.wall.skew_ms, self._skews_ms.get(node.name, node.wall.skew_ms)
            )

    def least_time_ms(self) -> float:
        """Return the lower bound of the cluster's present time in ms, if the cluster has run."""
        return self._time_ms + (self._world.now_s - self._time_s) * 1000 * SLOWER

    def read_begins(self, node: SimulatedNode) -> Callable[[], None]:
        """Return the check of a read that begins now at this node; it must be called when the read is answered."""
        owed_index = len(self.committed) + 1

        def check() -> None:
            self.reads += 1
            applied = node.group.applied_index
            if applied < owed_index:
                raise ViolationError(
                    f"{node.name} answers a read with entry {applied} applied, "
                    f"but entry {owed_index} was committed before the read"
                )

        return check

    def confirmed(self, origin: str, client: int, number: int) -> None:
        """Check that a confirmed batch has taken effect."""
        self.confirms += 1
        if self._counted.get((origin, client), 0) < number:
            self.fail(f"batch {number} of client {client} at {origin} is confirmed and has not taken effect")

    def _check_version(self, node: SimulatedNode) -> None:
        """Check that a program works only at a version that it can run, committed or not."""
        version, versions = node.group.configurations.newest.version, Versions(*node.machine.versions)
        if not versions.include(version):
            self.fail(f"the log of {node.name} is at version {version}, and its program can run {versions}")

    def applied(self, node: SimulatedNode, index: int) -> None:
        self._check_version(node)
        self._positions[index] = node.machine.position
        if index % DIGEST_EVERY == 0:
            self._check_state(node, index)

    def _check_state(self, node: SimulatedNode, index: int) -> None:
        """Check that states at the same index are equal."""
        digest = crc32(node.group.dump())
        if self._digests.setdefault(index, digest) != digest:
            self.fail(f"{node.name} has another state at index {index} than a node had before")

    def same_state(self, position: int, dumped: bytes) -> None:
        """Check that machines are equal after the same steps, even if a checkpoint or a snapshot led there."""
        if position > len(self.history):
            self.fail(f"a state has step {position} of {len(self.history)}")
        digest = crc32(dumped)
        if self._states.setdefault(position, digest) != digest:
            self.fail(f"a machine has another state at step {position} than one had before")

    # At the end

    def check_agreement(self) -> None:
        """Check that every node has applied every step, with equal states."""
        nodes = self._cluster.nodes
        digests = [crc32(node.group.dump()) for node in nodes]
        if len(dict.fromkeys(digests)) != 1:
            self.fail(f"the states differ at the end: {digests}")
        for node in nodes:
            if node.machine.position != len(self.history):
                self.fail(f"{node.name} has taken {node.machine.position} steps of {len(self.history)}")
            if node.group.engine.commit_index < len(self.committed) + 1:
                self.fail(f"{node.name} has lost committed entries")


def _without(configuration: Configuration, name: str) -> Configuration:
    return replace(configuration, members=tuple(each for each in configuration.members if each.name != name))


def _may_be_promoted(configuration: Configuration, name: str) -> bool:
    member = configuration.member(name)
    return member is not None and member.id is not None and not member.is_voter
