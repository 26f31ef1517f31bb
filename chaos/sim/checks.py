"""What must be true, whatever happens.

Lives here: the truth as the simulation knows it (what was committed, in which order batches took effect) and the
comparison of every node with it. Queue semantics are in queue_checks.py. Not here: anything that acts.

Law: a check looks and never touches. What one node has shown once - a committed entry, an applied batch, a state at an
index - holds for all nodes and all their later lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from zlib import crc32

from cluster.engine import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.sim.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world import World
    from cluster.machine import Machine

TAG = Struct("<QQ")
"""Before each payload: which client of the node made it, and its number, from 1."""

DIGEST_EVERY = 4
"""States are compared at every index that this divides; a difference that matters lasts."""

MINORITY_GRACE_S = 4.0
"""A leader without a majority steps down within this time, and messages under way at the cut have arrived."""


class ViolationError(BaseException):
    """A property does not hold. Not an Exception: nothing in the node may catch it."""


class Committed(NamedTuple):
    term: int
    checksum: int
    committed_in: int
    """Term of the node that was first seen to know: leaders of later terms must have the entry."""


class Applied(NamedTuple):
    """One call into a machine, and what came of it."""

    origin: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    ordinal: int
    time_ms: int
    checksum: int
    effects: int


class AppliedListener(Protocol):
    """Hears once of everything that took effect, in log order."""

    def batch(
        self, origin: str, index: int, ordinal: int, payload: memoryview, effects: Sequence[Any]
    ) -> None: ...

    def entry_ended(self, effects: Sequence[Any]) -> None: ...

    def origin_down(self, origin: str, effects: Sequence[Any]) -> None: ...


class WatchedMachine:
    """The machine of one process life, with every call compared to what other lives did at this point."""

    def __init__(self, machine: Machine, checks: Checks) -> None:
        self.inner = machine
        self.position = 0
        self._checks = checks

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: memoryview
    ) -> Sequence[Any]:
        body = payload[TAG.size :]
        effects = self.inner.apply_batch(origin, index, ordinal, time_ms, body)
        record = Applied(origin, index, ordinal, time_ms, crc32(payload), _checksum(effects))
        if self._checks.happened_first(self, record):
            self._checks.count_batch(origin, *TAG.unpack_from(payload))
            if self._checks.listener is not None:
                self._checks.listener.batch(origin, index, ordinal, body, effects)
        return effects

    def end_entry(self) -> Sequence[Any]:
        effects = self.inner.end_entry()
        first = self._checks.happened_first(self, Applied("", 0, 0, 0, 0, _checksum(effects)))
        if first and self._checks.listener is not None:
            self._checks.listener.entry_ended(effects)
        return effects

    def origin_down(self, origin: str, *, expelled: bool) -> Sequence[Any]:
        effects = self.inner.origin_down(origin, expelled=expelled)
        first = self._checks.happened_first(self, Applied(origin, 0, 0, 0, expelled, _checksum(effects)))
        if first and self._checks.listener is not None:
            self._checks.listener.origin_down(origin, effects)
        return effects

    def dump(self) -> bytes:
        return self.inner.dump()

    def load(self, data: bytes) -> None:
        self.inner.load(data)

    def digest(self) -> str:
        return self.inner.digest()


@dataclass(slots=True)
class _Seen:
    """What was last looked at in one life of a node."""

    life: int = 0
    commit_index: int = 1
    led_term: int = 0
    led_since_s: float = 0.0
    term: int = 0
    vote: str | None = None


class Checks:
    """The checks that every run has."""

    listener: AppliedListener | None = None

    def __init__(self, world: World, machine: Callable[[], Machine]) -> None:
        self.committed: list[Committed] = []
        """By index, from 2: entry 1 is the same empty one everywhere."""
        self.history: list[Applied] = []
        self.elections = 0
        self.confirms = 0
        self._world = world
        self._new_machine = machine
        self._leaders: dict[int, str] = {}
        self._digests: dict[int, int] = {}
        self._counted: dict[tuple[str, int], int] = {}
        self._seen: dict[str, _Seen] = {}
        self._terms: dict[str, int] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._minority_since_s: dict[str, float] = {}
        self._minority_terms: dict[str, int] = {}

    def watch(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def machine(self) -> WatchedMachine:
        return WatchedMachine(self._new_machine(), self)

    def fail(self, what: str) -> None:
        raise ViolationError(f"at {self._world.now_s:.3f} s: {what} [{self._cluster.describe()}]")

    # A node's life

    def started(self, node: SimulatedNode) -> None:
        term = node.group.engine.term
        if term < self._terms.get(node.name, 0):
            self.fail(f"{node.name} has forgotten term {self._terms[node.name]}")
        vote = self._votes.get((node.name, term))
        if vote is not None and vote != node.group.engine.voted_for:
            self.fail(f"{node.name} has forgotten that it voted for {vote} in term {term}")
        self._seen[node.name] = _Seen(node.life)
        self.topology_changed()

    def node_failed(self, node: SimulatedNode, error: BaseException) -> None:
        if isinstance(error, ViolationError):
            raise error
        raise ViolationError(f"at {self._world.now_s:.3f} s: {node.name} failed: {error!r}") from error

    # After everything that a node does

    def observe(self, node: SimulatedNode) -> None:
        """Look at a node; called after each of its steps."""
        seen = self._seen.get(node.name)
        if seen is None or seen.life != node.life or not node.runtime.alive:
            return
        engine = node.group.engine
        role = engine.role
        if engine.term != seen.term or engine.voted_for != seen.vote:
            self._new_term(node, seen)
        if role is not Role.FOLLOWER:
            if role is Role.LEADER and engine.term != seen.led_term:
                seen.led_term = engine.term
                seen.led_since_s = self._world.now_s
                self._new_leader(node, engine.term)
            self._check_minority(node, role)
            if role is Role.LEADER:
                self._check_beliefs(node)
        if engine.applied_index > node.group.journal.last_index:
            self.fail(f"{node.name} has deleted entry {engine.applied_index}, which it had applied")
        commit_index = engine.commit_index
        if commit_index > seen.commit_index:
            self._check_committed(node, seen.commit_index + 1, commit_index)
            seen.commit_index = commit_index

    def _new_term(self, node: SimulatedNode, seen: _Seen) -> None:
        """A term only grows; a node votes for one in a term."""
        engine = node.group.engine
        seen.term, seen.vote = engine.term, engine.voted_for
        self._terms[node.name] = engine.term
        vote = engine.voted_for
        if vote is not None and self._votes.setdefault((node.name, engine.term), vote) != vote:
            self.fail(f"{node.name} votes for {vote} in term {engine.term}, and did for another")

    def _new_leader(self, node: SimulatedNode, term: int) -> None:
        """At most one leader per term; a leader has every committed entry."""
        self.elections += 1
        self._world.trace(b"leader %s %d" % (node.name.encode(), term))
        other = self._leaders.setdefault(term, node.name)
        if other != node.name:
            self.fail(f"{other} and {node.name} both lead term {term}")
        journal = node.group.journal
        for index, committed in enumerate(self.committed, start=2):
            if committed.committed_in >= term:
                break
            if index > journal.last_index:
                self.fail(f"{node.name} leads term {term} without entry {index}, which is committed")
            if journal.term_at(index) != committed.term:
                self.fail(f"{node.name} leads term {term} with another entry {index} than the committed one")

    def _check_beliefs(self, leader: SimulatedNode) -> None:
        """What a leader takes for acknowledged is on the follower's disk, and is what the leader has.

        A follower that is in an earlier term has acknowledged nothing; one in a later term may have another log by now.
        """
        engine, journal = leader.group.engine, leader.group.journal
        for node in self._cluster.nodes:
            index = engine.acknowledged_index(node.name)
            if not index or not node.up or node.group.engine.term > engine.term:
                continue
            if node.group.engine.term < engine.term or node.group.journal.synced_index < index:
                self.fail(f"{leader.name} believes that {node.name} has synced entry {index}")
            if index > journal.last_index or node.group.journal.term_at(index) != journal.term_at(index):
                self.fail(f"{leader.name} believes that {node.name} has its entry {index}")

    def _check_committed(self, node: SimulatedNode, first: int, last: int) -> None:
        """Log matching over committed prefixes."""
        journal = node.group.journal
        if last > journal.last_index:
            self.fail(f"{node.name} has committed entry {last}, which it does not have")
        for index in range(first, last + 1):
            record = Committed(journal.term_at(index), crc32(journal.read(index)), node.group.engine.term)
            if index - 2 == len(self.committed):
                self.committed.append(record)
            elif self.committed[index - 2][:2] != record[:2]:
                self.fail(f"{node.name} has committed another entry {index} than was committed before")

    def _check_minority(self, node: SimulatedNode, role: Role) -> None:
        """H9: who has not reached a majority for a while neither leads nor campaigns.

        Votes that were stuck on the way may still make it leader for a moment, or have it campaign once.
        """
        since_s = self._minority_since_s.get(node.name)
        if since_s is None or self._world.now_s - since_s < MINORITY_GRACE_S:
            return
        if role is Role.LEADER and self._world.now_s - self._seen[node.name].led_since_s > MINORITY_GRACE_S:
            self.fail(f"{node.name} leads though cut off from the majority since {since_s:.3f} s")
        term = node.group.engine.term
        if term - self._minority_terms.setdefault(node.name, term) > 1:
            self.fail(f"{node.name} campaigns though cut off from the majority since {since_s:.3f} s")

    def topology_changed(self) -> None:
        """Note who is cut off from the majority, and since when."""
        cluster = self._cluster
        awake = [node for node in cluster.nodes if node.up and not node.runtime.paused]
        for node in cluster.nodes:
            reached = sum(
                cluster.network.reachable(node.name, peer.name) for peer in awake if peer is not node
            )
            if node in awake and (reached + 1) * 2 <= len(cluster.nodes):
                self._minority_since_s.setdefault(node.name, self._world.now_s)
            else:
                self._minority_since_s.pop(node.name, None)
                self._minority_terms.pop(node.name, None)

    # What took effect

    def happened_first(self, machine: WatchedMachine, record: Applied) -> bool:
        """Whether no life of any node has come this far before; those that have must have done the same."""
        position = machine.position
        machine.position = position + 1
        if position == len(self.history):
            self.history.append(record)
            return True
        if self.history[position] != record:
            self.fail(f"step {position} was {self.history[position]} elsewhere and is {record} here")
        return False

    def count_batch(self, origin: str, client: int, number: int) -> None:
        """Each client's batches take effect once and in order."""
        expected = self._counted.get((origin, client), 0) + 1
        if number != expected:
            self.fail(f"batch {number} of client {client} at {origin} took effect, batch {expected} was due")
        self._counted[origin, client] = number

    def confirmed(self, origin: str, client: int, number: int) -> None:
        """A confirm tells the truth."""
        self.confirms += 1
        if self._counted.get((origin, client), 0) < number:
            self.fail(f"batch {number} of client {client} at {origin} is confirmed and has not taken effect")

    def applied(self, node: SimulatedNode, index: int) -> None:
        """Equal state at equal index."""
        if index % DIGEST_EVERY:
            return
        digest = crc32(node.group.dump())
        if self._digests.setdefault(index, digest) != digest:
            self.fail(f"{node.name} has another state at index {index} than a node had before")

    # At the end

    def check_agreement(self) -> None:
        """Everybody has everything, and the same."""
        nodes = self._cluster.nodes
        digests = [crc32(node.group.dump()) for node in nodes]
        if len(dict.fromkeys(digests)) != 1:
            self.fail(f"the states differ at the end: {digests}")
        for node in nodes:
            if node.machine.position != len(self.history):
                self.fail(f"{node.name} has taken {node.machine.position} steps of {len(self.history)}")
            if node.group.engine.commit_index < len(self.committed) + 1:
                self.fail(f"{node.name} has lost committed entries")


def _checksum(effects: Sequence[Any]) -> int:
    return crc32(repr(effects).encode()) if effects else 0
