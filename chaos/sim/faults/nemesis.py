"""The nemesis: injects faults into a simulated cluster at random times and for random durations.

Invariant: every fault ends by itself or in `stop`. After that all nodes, links and disks work, though members may still
be under maintenance. Damage to durable data hits a single node at a time, and only after every earlier victim has
recovered, so the undamaged nodes are a majority.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING

from chaos.sim.faults.operators import Operators
from chaos.sim.world.cluster import CLUSTER, GROUP, LOG
from chaos.sim.world.compared_machines import Program
from cluster.configuration.change_request import MemberChange, Verb
from cluster.configuration.configuration import PeerAddress
from cluster.log.hardstate import NAMES as HARD_STATE_NAMES
from cluster.log.hardstate import VoterStatus
from cluster.log.manifest import MANIFEST_NAME, Manifest, load_manifest
from cluster.log.sealed_segment import open_file
from cluster.log.segment import FILE_HEADER_BYTES
from cluster.log.segment_reader import scan_open
from cluster.log.sync_mark import MARK_NAME, load_mark
from cluster.storage.identity import START_FILES, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from chaos.sim.checks.checks import Checks
    from chaos.sim.world.cluster import SimulatedCluster, SimulatedNode
    from chaos.sim.world.disk import DiskContent
    from chaos.sim.world.world import SimulatedWorld


NOBODY = "n9"
"""A name that no node has."""
SMALL_DISK_FREE_BYTES_MAX = 48 * 1024
STEPS_OF_START_MAX = 30
DAY_MS = 86_400_000
CLOCK_JUMPS_MS = (3_000, 20_000, DAY_MS // 24, 3 * DAY_MS, 100_000 * DAY_MS)
"""Largest clock jumps in ms. The last of them leads before the epoch, or beyond 64 bits of nanoseconds."""


FAULTS = {
    "kill": 3.0,
    "power loss": 2.0,
    "kill all": 0.3,
    "power loss of all": 0.6,
    "isolate": 1.5,
    "partition": 1.0,
    "one-way cut": 1.0,
    "half cut": 0.7,
    "bridge": 0.7,
    "reset": 2.0,
    "lag": 1.0,
    "pause": 1.5,
    "slow disk": 1.0,
    "failing sync": 0.3,
    "full disk": 0.3,
    "small disk": 0.3,
    "crash in a write": 1.0,
    "flip bit": 1.0,
    "read error": 0.5,
    "lose directory": 0.6,
    "shorten log": 0.6,
    "clock jump": 0.5,
    "transfer": 0.5,
    "wrong members": 0.4,
    "foreign version": 0.3,
    "remove member": 0.4,
    "move": 0.3,
    "old directory": 0.3,
    "drain": 0.4,
    "revive": 0.4,
    "star": 1.0,
    "broken proxy": 0.5,
    "broken proxies": 0.5,
    "roll back": 1.0,
}
"""The faults, with their weights in a run that has them all."""


class Nemesis:
    """Injects faults at random times. A fault that finds no suitable node does not count as done."""

    def __init__(self, world: SimulatedWorld, cluster: SimulatedCluster, checks: Checks) -> None:
        self.done: dict[str, int] = {}
        self.installed = dict.fromkeys(cluster.names, Program.CURRENT)
        """The program that operators installed on each node.

        A foreign program that a node runs for a while does not count.
        """
        self.listener: Callable[[str], None] | None = None
        """Called with the name of each injected fault."""
        self.clock_listener: Callable[[Sequence[str], int], None] | None = None
        """Called with the names of nodes and the milliseconds by which their wall clocks have moved."""
        self._world = world
        self._cluster = cluster
        self._checks = checks
        self._random: Random = world.random("nemesis")
        self._operators = Operators(world, cluster, checks, self._random)
        self._stopped = False
        self._broken_proxies = 0
        """Number of nodes behind a proxy that refuses connections."""
        self._put_back_node: SimulatedNode | None = None
        """The node whose directory is being put back as it was earlier, until it is repaired."""
        self._undos: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._faults: dict[str, Callable[[], bool | None]] = {
            "kill": partial(self._kill, power_loss=False),
            "power loss": partial(self._kill, power_loss=True),
            "kill all": partial(self._kill_all, power_loss=False),
            "power loss of all": partial(self._kill_all, power_loss=True),
            "isolate": self._isolate,
            "partition": self._partition,
            "one-way cut": self._one_way_cut,
            "half cut": self._half_cut,
            "bridge": self._bridge,
            "reset": self._reset,
            "lag": self._lag,
            "pause": self._pause,
            "slow disk": self._slow_disk,
            "failing sync": self._failing_sync,
            "full disk": self._full_disk,
            "small disk": self._small_disk,
            "crash in a write": self._crash_in_a_write,
            "flip bit": self._flip_bit,
            "read error": self._read_error,
            "lose directory": self._lose_directory,
            "shorten log": self._shorten_log,
            "clock jump": self._clock_jump,
            "transfer": self._transfer,
            "wrong members": self._wrong_members,
            "foreign version": self._foreign_version,
            "remove member": self._remove_member,
            "move": self._move,
            "old directory": self._old_directory,
            "drain": partial(self._maintain, Verb.DRAIN),
            "revive": partial(self._maintain, Verb.REVIVE),
            "star": self._star,
            "broken proxy": partial(self._break_proxies, also_its_own=False),
            "broken proxies": partial(self._break_proxies, also_its_own=True),
            "roll back": self._roll_back,
        }

    def start(self) -> None:
        self._later()

    def stop(self) -> None:
        """Stop injecting faults and undo all faults in force."""
        self._stopped = True
        self._operators.stop()
        for number in list(self._undos):
            self._undo(number)

    def _later(self) -> None:
        interval_s = self._cluster.options.fault_interval_s
        self._world.after(self._random.expovariate(1 / interval_s), self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        weights = self._cluster.options.faults
        name = self._random.choices(list(weights), list(weights.values()))[0]
        if self._put_back_node is None and self._faults[name]() is not False:
            self.done[name] = self.done.get(name, 0) + 1
            if self.listener is not None:
                self.listener(name)
        self._checks.topology_changed()
        self._later()

    def _until(self, delay_s: float, undo: Callable[[], None]) -> None:
        self._count += 1
        self._undos[self._count] = undo
        self._world.after(delay_s, partial(self._undo, self._count))

    def _undo(self, number: int) -> None:
        undo = self._undos.pop(number, None)
        if undo is not None:
            undo()
            self._checks.topology_changed()

    # Choice of nodes and durations

    def _anyone(self) -> SimulatedNode:
        """Return the leader in half of the calls, because faults hurt most there, and otherwise a random node."""
        leader = self._cluster.leader()
        if leader is not None and self._random.random() < 0.5:
            return leader
        return self._random.choice(self._cluster.nodes)

    def _pair(self) -> tuple[str, str]:
        node = self._anyone()
        return node.name, self._random.choice(node.peers)

    def _short_or_long_s(self, long_s: float) -> float:
        return self._random.uniform(0.0, 0.3 if self._random.random() < 0.4 else long_s)

    # Processes

    def _kill(self, *, power_loss: bool) -> None:
        self._end(self._anyone(), power_loss=power_loss)

    def _kill_all(self, *, power_loss: bool) -> None:
        for node in self._cluster.nodes:
            self._end(node, power_loss=power_loss)

    def _end(self, node: SimulatedNode, *, power_loss: bool) -> None:
        if node.up:
            node.end(power_loss=power_loss)
            self._until(self._short_or_long_s(4.0), node.start)

    def _pause(self) -> None:
        node = self._anyone()
        if node.up and not node.runtime.paused:
            node.runtime.pause()
            self._until(self._short_or_long_s(8.0), node.runtime.go_on)

    def _transfer(self) -> None:
        """Ask a random node to hand leadership over, to a named node or to any peer."""
        node = self._random.choice(self._cluster.nodes)
        to = self._random.choice(self._cluster.names) if self._random.random() < 0.5 else None
        if node.up:
            node.runtime.enter(lambda: node.group.leadership.request_transfer(to))

    # Operators

    def _wrong_members(self) -> bool:
        """Start nodes with a wrong list of members, with their own directories or with empty ones."""
        if self._random.random() < 0.5:
            nodes = self._emptied(self._random.randint(1, 2))
            members = self._wrong_list([node.name for node in nodes], others_min=1)
            for node in nodes:
                node.members = members
            self._start_empty(nodes)
            return bool(nodes)
        nodes = self._random.sample(self._cluster.nodes, self._random.randint(1, 2))
        if any(not node.up or node.misconfigured for node in nodes):
            return False
        are_blank = any(node.voter_status is VoterStatus.BLANK for node in nodes)
        members = self._wrong_list([node.name for node in nodes], others_min=int(are_blank))
        for node in nodes:
            node.members = members
        self._restart(nodes)
        self._until(self._short_or_long_s(6.0), partial(self._configure_right, nodes))
        return True

    def _remove_member(self) -> bool:
        """Ask the cluster to remove a member, which returns with an empty directory when it learns that."""
        return self._operators.remove(self._anyone())

    def _maintain(self, verb: Verb) -> None:
        """Begin or end maintenance of a member or of all members; the state at the end of the faults stays."""
        names = self._cluster.names if self._random.random() < 0.3 else [self._anyone().name]
        for name in names:
            self._operators.request(MemberChange(verb, name), self._random.randint(1, 10))

    def _move(self) -> bool:
        """Start a node at a new address. Its file lists the peers' former addresses, and they may have moved too."""
        node = self._anyone()
        if not node.up or node.joins:
            return False
        node.end(power_loss=False)
        self._count += 1
        node.address = PeerAddress(f"{node.name}.{self._count}", 1)
        self._until(self._short_or_long_s(4.0), node.start)
        return True

    def _wrong_list(self, names: Sequence[str], others_min: int = 0) -> list[str]:
        """Return a wrong list of members: `names`, some peers and perhaps an unknown name; never the right members.

        At least one peer (`others_min`) is needed if the directories are empty or have promised nothing yet: without
        it, the nodes would start a new cluster, because no node can know that the list is wrong.
        """
        others = [name for name in (*self._cluster.names, NOBODY) if name not in names]
        count = self._random.randint(others_min, len(others) - 1)
        members = sorted([*names, *self._random.sample(others, count)])
        return members if members != self._cluster.founders else [*members, NOBODY]

    def _foreign_version(self) -> bool:
        """Install a foreign program, with an empty directory or with that of the right program."""
        if self._random.random() < 0.5:
            nodes = self._emptied(1)
            for node in nodes:
                node.program = Program.FOREIGN
            self._start_empty(nodes)
            return bool(nodes)
        node = self._anyone()
        if not node.up or node.misconfigured:
            return False
        node.program = Program.FOREIGN
        self._restart([node])
        self._until(self._short_or_long_s(6.0), partial(self._configure_right, [node]))
        return True

    def _emptied(self, count: int) -> list[SimulatedNode]:
        """End and empty up to `count` nodes that the cluster can spare, and return them.

        Returns no node while any node has a wrong configuration, because empty nodes with equal configurations could
        start a cluster of their own.
        """
        nodes: list[SimulatedNode] = []
        if any(node.misconfigured for node in self._cluster.nodes):
            return nodes
        for _ in range(count):
            node = self._victim()
            if node is not None:
                self._empty(node)
                nodes.append(node)
        return nodes

    def _start_empty(self, nodes: Sequence[SimulatedNode]) -> None:
        """Start empty nodes with a wrong configuration; later correct each with a fresh empty directory."""
        for node in nodes:
            node.start()
            self._until(self._short_or_long_s(6.0), partial(self._begin_anew, node))

    def _begin_anew(self, node: SimulatedNode) -> None:
        """Correct the configuration of a node.

        Empty its directory first, unless the log lists that directory's member.
        """
        if not self._checks.counts(node):
            self._empty(node)
        self._configure_right([node])

    def _empty(self, node: SimulatedNode) -> None:
        node.end(power_loss=False)
        node.disk.lose_everything()
        self._checks.damaged(node)

    def _configure_right(self, nodes: Sequence[SimulatedNode]) -> None:
        for node in nodes:
            node.members = self._cluster.founders
            node.program = self.installed[node.name]
        self._restart(nodes)

    def _restart(self, nodes: Sequence[SimulatedNode]) -> None:
        for node in nodes:
            node.end(power_loss=False)
            node.start()

    # Links

    def _cut(self, cuts: Sequence[tuple[str, str]]) -> None:
        for source, target in cuts:
            self._cluster.network.cut(source, target)
        self._until(self._short_or_long_s(8.0), partial(self._heal, cuts))

    def _heal(self, cuts: Sequence[tuple[str, str]]) -> None:
        for source, target in cuts:
            self._cluster.network.heal(source, target)
        self._checks.topology_changed()

    def _isolate(self) -> None:
        node = self._anyone()
        self._cut([cut for peer in node.peers for cut in ((node.name, peer), (peer, node.name))])

    def _partition(self) -> None:
        names = list(self._cluster.names)
        self._random.shuffle(names)
        size = self._random.randint(1, len(names) - 1)
        left, right = names[:size], names[size:]
        self._cut([cut for a in left for b in right for cut in ((a, b), (b, a))])

    def _one_way_cut(self) -> None:
        node = self._anyone()
        peers = node.peers if self._random.random() < 0.5 else [self._random.choice(node.peers)]
        outwards = self._random.random() < 0.5
        self._cut([(node.name, peer) if outwards else (peer, node.name) for peer in peers])

    def _half_cut(self) -> None:
        """Hold back the bytes of a node to its peers, which it still hears."""
        node = self._anyone()
        held = [(node.name, peer) for peer in node.peers]
        for source, target in held:
            self._cluster.network.hold(source, target)
        self._until(self._short_or_long_s(8.0), partial(self._heal, held))

    def _bridge(self) -> None:
        """Cut the links between two nodes that all other nodes can still reach."""
        a, b = self._pair()
        self._cut([(a, b), (b, a)])

    def _break_proxies(self, *, also_its_own: bool) -> bool:
        """End the links of a running node, and refuse new links to it.

        With `also_its_own`, also refuse the links that the node dials. Without it the node can dial all its peers,
        because no second node has a broken proxy at that time.
        """
        if self._broken_proxies and not also_its_own:
            return False
        node = self._anyone()
        peers = node.peers if self._random.random() < 0.7 else [self._random.choice(node.peers)]
        refused = [(peer, node.name) for peer in peers]
        if also_its_own:
            refused += [(node.name, peer) for peer in peers]
        for source, target in refused:
            self._cluster.network.refuse(source, target)
        for peer in peers:
            self._cluster.network.reset(node.name, peer)
        self._broken_proxies += 1
        self._until(self._short_or_long_s(4.0), partial(self._mend_proxies, refused))
        return True

    def _mend_proxies(self, refused: Sequence[tuple[str, str]]) -> None:
        self._broken_proxies -= 1
        for source, target in refused:
            self._cluster.network.admit(source, target)

    def _star(self) -> None:
        """Let a single node see all peers while its peers see only that node; then perhaps move the center."""
        self._center_on(self._random.choice(self._cluster.names), self._random.randint(0, 3))

    def _center_on(self, center: str, changes: int) -> None:
        rays = [cut for cut in permutations(self._cluster.names, 2) if center not in cut]
        for source, target in rays:
            self._cluster.network.cut(source, target)
        self._until(self._random.uniform(0.5, 6.0), partial(self._change_center, rays, changes))

    def _change_center(self, rays: Sequence[tuple[str, str]], changes: int) -> None:
        self._heal(rays)
        if changes and not self._stopped:
            self._center_on(self._random.choice(self._cluster.names), changes - 1)

    def _reset(self) -> None:
        self._cluster.network.reset(*self._pair())

    def _lag(self) -> None:
        source, target = self._pair()
        self._cluster.network.lag(source, target, self._random.uniform(0.05, 1.5))
        self._until(self._short_or_long_s(5.0), partial(self._cluster.network.lag, source, target, 0.0))

    # Disks

    def _slow_disk(self) -> None:
        nodes = self._cluster.nodes if self._random.random() < 0.3 else [self._anyone()]
        factor = self._random.choice((10.0, 100.0, 1000.0))
        for node in nodes:
            node.disk.slow = factor
        self._until(self._short_or_long_s(5.0), partial(self._usual_speed, nodes))

    def _usual_speed(self, nodes: Sequence[SimulatedNode]) -> None:
        for node in nodes:
            node.disk.slow = self._cluster.options.disk_slowness

    def _failing_sync(self) -> None:
        self._anyone().disk.fail_next_sync()

    def _full_disk(self) -> None:
        """Fill a disk, at once or after some disk operations."""
        disk = self._anyone().disk
        disk.fill_after(self._random.choice((0, self._random.randint(0, STEPS_OF_START_MAX))))
        self._until(self._short_or_long_s(8.0), disk.empty)

    def _small_disk(self) -> None:
        """Leave little free space on a disk; removed files make room again."""
        disk = self._anyone().disk
        disk.capacity_bytes = disk.used_bytes() + self._random.randint(0, SMALL_DISK_FREE_BYTES_MAX)

        def undo() -> None:
            disk.capacity_bytes = None

        self._until(self._short_or_long_s(8.0), undo)

    def _crash_in_a_write(self) -> None:
        """End a process in the middle of a write, now or during its next start.

        Writes on the event loop are interrupted by no other fault.
        """
        node = self._anyone()
        if not node.up:
            return
        if self._random.random() < 0.6:
            node.end(power_loss=self._is_power_loss())
            node.end_within(self._random.randint(0, STEPS_OF_START_MAX), power_loss=self._is_power_loss())
            node.start()
        else:
            node.end_within(self._random.randint(0, 4), power_loss=self._is_power_loss())
        self._until(2.0, node.spare)

    def _is_power_loss(self) -> bool:
        return self._random.random() < 0.5

    # Damage

    def _flip_bit(self) -> bool:
        node = self._victim()
        if node is None:
            return False
        self._end(node, power_loss=self._is_power_loss())
        places = _flippable(node)
        if not places:
            return False
        kind = self._random.choice(sorted({_kind(path) for path in places}))
        path = self._random.choice([path for path in places if _kind(path) == kind])
        node.disk.flip_bit(path, self._random.randrange(places[path] * 8))
        self._checks.damaged(node)
        if kind == "checkpoint":
            self._checks.checkpoint_damaged(node, int(path.rpartition("/")[2].partition(".")[0]))
        return True

    def _read_error(self) -> bool:
        node = self._victim()
        if node is None:
            return False
        segments = [path for path in node.disk.files() if _is_segment(path)]
        if not segments:
            return False
        node.disk.fail_reads(self._random.choice(segments))
        self._checks.damaged(node)
        self._until(self._short_or_long_s(6.0), node.disk.heal_reads)
        return True

    def _lose_directory(self) -> bool:
        node = self._victim()
        if node is None or node.misconfigured:
            return False  # the next directory would get the wrong list of members
        self._end(node, power_loss=self._is_power_loss())
        node.disk.lose_everything()
        self._checks.damaged(node)
        return True

    def _old_directory(self) -> bool:
        """Lose a directory and bring it back when a new directory may have taken its place under the same name.

        As long as members are known by their names, no node could tell the two apart.
        """
        node = self._victim()
        if node is None or node.misconfigured or not node.group.configurations.cluster:
            return False
        if self._checks.may_find_damage(node):
            return False
        self._end(node, power_loss=False)
        old = node.disk.content()
        self._empty(node)
        self._until(self._short_or_long_s(10.0), partial(self._put_back, node, old))
        return True

    def _put_back(self, node: SimulatedNode, old: DiskContent) -> None:
        """Bring an old directory back if the node can be spared. The cluster may have removed its member by now."""
        if node.up and not node.misconfigured and self._checks.may_be_damaged(node):
            self._empty(node)
            node.disk.put_back(old)
            node.may_be_removed = True
            node.start()

    # Directories as they were earlier

    def _roll_back(self) -> bool:
        """Put a node's directory back as it was some seconds ago, when other nodes remember its promises.

        While the directory grows, a minority is cut off, so commits need the node's acknowledgements. When the node has
        started and met the nodes that remember, these are cut off, and the node meets the minority. Until it is
        repaired there is no other fault, because memories could be lost, and no node could know. No log of the minority
        has another entry in the place of a committed one, because nodes hear only how long a rightful leader's log is.
        """
        node, leader, options = self._anyone(), self._cluster.leader(), self._cluster.options
        if self._undos or options.grows or options.is_upgrade or not self._remember(node):
            return False
        others = [other.name for other in self._cluster.nodes if other not in (node, leader)]
        minority = self._random.sample(others, (len(self._cluster.nodes) - 1) // 2)
        self._put_back_node = node
        snapshot, lives = node.disk.snapshot(), self._lives()
        cuts = self._cuts_around(minority)
        self._set_cuts(cuts)
        delay_s = self._random.uniform(0.1, 3.0)
        put_back = partial(self._put_back_snapshot, node, snapshot, lives, minority)
        self._world.after(delay_s, put_back)
        return True

    def _lives(self) -> dict[str, int]:
        return {node.name: node.incarnation for node in self._cluster.nodes}

    def _remember(self, node: SimulatedNode) -> bool:
        """Return whether all nodes run, know each other, and report losses."""
        nodes = self._cluster.nodes
        return self._checks.may_be_damaged(node) and all(
            each.up
            and each.has_started
            and not each.runtime.paused
            and not each.misconfigured
            and each.voter_status is VoterStatus.VOTER
            and not self._checks.may_find_damage(each)
            and each.group.configurations.committed.version >= each.machine.losses_since
            and self._checks.counts(each)
            and len(self._cluster.network.linked(each.name)) == len(nodes) - 1
            for each in nodes
        )

    def _cuts_around(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """Return the cuts in both directions between these nodes and all others."""
        others = [name for name in self._cluster.names if name not in names]
        return [cut for name in names for other in others for cut in ((name, other), (other, name))]

    def _set_cuts(self, cuts: Sequence[tuple[str, str]]) -> None:
        for source, target in cuts:
            self._cluster.network.cut(source, target)
        self._checks.topology_changed()

    def _put_back_snapshot(
        self, node: SimulatedNode, snapshot: DiskContent, lives: dict[str, int], minority: Sequence[str]
    ) -> None:
        is_unsafe = self._checks.conflict_with_commits(minority) or not self._checks.may_be_damaged(node)
        if self._lives() != lives or is_unsafe:
            self._heal(self._cuts_around(minority))
            self._put_back_node = None
            return
        knowing = [name for name in self._cluster.names if name not in (node.name, *minority)]
        if not self._checks.know_all_commits(knowing):
            # A leader alone knows what it commits, until its next message has arrived.
            again = partial(self._put_back_snapshot, node, snapshot, lives, minority)
            self._world.after(0.005, again)
            return
        node.end(power_loss=False)
        node.disk.put_back(snapshot)
        self._checks.rolled_back(node)
        lag_s = self._random.uniform(0.0, 0.3)
        for name in knowing:
            self._cluster.network.lag(name, node.name, lag_s)
            self._cluster.network.lag(node.name, name, lag_s)
        self._world.after(0.2, node.start)
        self._world.after(0.2, partial(self._await_meeting, node, minority, knowing))

    def _await_meeting(self, node: SimulatedNode, minority: Sequence[str], knowing: Sequence[str]) -> None:
        """Exchange the nodes that remember for the minority, soon after the node has heard them.

        A link is not enough: its other end may not have opened it, or their messages may still be on their way.
        """
        if node.up and node.has_started and self._checks.has_heard_memories(node, knowing):
            exchange = partial(self._exchange, node, minority, knowing)
            self._world.after(self._random.uniform(0.0, 0.1), exchange)
        else:
            self._world.after(0.02, partial(self._await_meeting, node, minority, knowing))

    def _exchange(self, node: SimulatedNode, minority: Sequence[str], knowing: Sequence[str]) -> None:
        cuts = self._cuts_around(knowing)
        self._set_cuts(cuts)
        self._heal(self._cuts_around(minority))
        for name in knowing:
            self._cluster.network.lag(name, node.name, 0.0)
            self._cluster.network.lag(node.name, name, 0.0)
        self._until(self._random.uniform(0.5, 6.0), partial(self._heal, cuts))
        self._await_repair(node)

    def _await_repair(self, node: SimulatedNode) -> None:
        if self._checks.is_repaired(node):
            self._put_back_node = None
        else:
            self._world.after(0.1, partial(self._await_repair, node))

    def _shorten_log(self) -> bool:
        """Shorten or delete the open segment, so that acknowledged entries are lost."""
        node = self._victim()
        if node is None or not node.has_started:
            return False
        synced_index, power_loss = node.group.journal.synced_index, self._is_power_loss()
        self._end(node, power_loss=power_loss)
        path, ends = _open_records(node, synced_index, power_loss=power_loss)
        if not ends:
            return False
        kind = self._random.choice(("between records", "anywhere", "lost"))
        if kind == "between records":
            node.disk.shorten(path, self._random.choice([FILE_HEADER_BYTES, *ends[:-1]]))
        elif kind == "anywhere":
            node.disk.shorten(path, self._random.randrange(ends[-1]))
        else:
            node.disk.lose_file(path)
        self._checks.damaged(node)
        return True

    def _victim(self) -> SimulatedNode | None:
        """Return a running node that the cluster can spare, or None."""
        node = self._anyone()
        return node if node.up and self._checks.may_be_damaged(node) else None

    # Clocks

    def _clock_jump(self) -> None:
        """Let the clock of one node or of all nodes jump, for a while or for ever."""
        nodes = self._cluster.nodes if self._random.random() < 0.2 else [self._anyone()]
        size_ms = self._random.choice(CLOCK_JUMPS_MS)
        jump_ms = self._random.randint(-size_ms, size_ms)
        self._move_clocks(nodes, jump_ms)
        if self._random.random() < 0.6:
            self._until(self._short_or_long_s(6.0), partial(self._move_clocks, nodes, -jump_ms))

    def _move_clocks(self, nodes: Sequence[SimulatedNode], jump_ms: int) -> None:
        for node in nodes:
            node.wall.skew_ms += jump_ms
        self._checks.clocks_changed()
        if self.clock_listener is not None:
            self.clock_listener([node.name for node in nodes], jump_ms)


def _flippable(node: SimulatedNode) -> dict[str, int]:
    """Return the bytes, from the start of each file, in which a node must notice damage or survive it.

    Excludes the last synced batch of the open segment, where damage looks like a torn write, and files whose other copy
    is already damaged.
    """
    disk = node.disk
    files = disk.files()
    places: dict[str, int] = {}
    sealed = _sealed(node)
    damaged = disk.damaged_files()
    for path, size in files.items():
        if _kind(path) in ("hardstate", "start"):
            same = [disk.read_file(other) for other in files if _kind(other) == _kind(path)]
            places[path] = size if len(same) == 2 and same[0] == same[1] else 0
        elif _kind(path) in ("identity", "manifest"):
            places[path] = 0 if path in damaged else size
        elif _kind(path) == "segment":
            places[path] = size if path in sealed else disk.vouched_bytes(path)
        elif _kind(path) in ("sparse", "checkpoint", MARK_NAME):
            places[path] = size
    return {path: size for path, size in places.items() if size}


def _sealed(node: SimulatedNode) -> list[str]:
    """Return the paths of the sealed segments, as the manifest on disk lists them."""
    return [f"{LOG}/{row.name}" for row in _manifest(node).sealed]


def _manifest(node: SimulatedNode) -> Manifest:
    path = f"{LOG}/{MANIFEST_NAME}"
    return load_manifest(node.disk, path, _identity(node)) if path in node.disk.files() else Manifest()


def _identity(node: SimulatedNode) -> bytes:
    return Owner(CLUSTER, node.name, 0).key()


def _open_records(node: SimulatedNode, synced_index: int, *, power_loss: bool) -> tuple[str, list[int]]:
    """Return the path of the open segment, and the end offsets of its records whose loss a node must notice.

    After a power loss, only records that the sync mark covers count; the mark may cover less than the node had synced.
    """
    manifest = _manifest(node)
    path = f"{LOG}/{manifest.open_name}"
    mark = load_mark(node.disk, LOG, _identity(node))
    vouched = mark.size if mark is not None and mark.name == manifest.open_name else 0
    if path not in node.disk.files() or path in node.disk.damaged_files():
        return path, []
    opened = open_file(node.disk, path, _identity(node))
    records = scan_open(opened, manifest, None, writes_lost=True).records
    ends = [records.extent(index)[1] for index in range(records.first, min(synced_index + 1, records.end))]
    return path, [end for end in ends if end <= vouched or not power_loss]


def _is_segment(path: str) -> bool:
    return path.startswith(LOG) and _kind(path) in ("segment", "sparse")


def _kind(path: str) -> str:
    """Return the kind of a file that a start needs, or "" for other files."""
    directory, _, name = path.rpartition("/")
    if directory == GROUP and name in ("identity", *START_FILES, *HARD_STATE_NAMES):
        return name.partition("-")[0]
    if directory == LOG:
        return name if name in (MANIFEST_NAME, MARK_NAME) else name.rpartition(".")[2]
    return ""
