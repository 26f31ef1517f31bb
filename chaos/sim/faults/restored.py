"""Take a backup at a random moment of a run, and restore a new cluster from it at the end.

The new cluster has the names, addresses and secret of the old cluster, which still runs at that time. The first new
node takes the place of an old node. The remaining new nodes start with empty directories, after all old nodes are down.

Invariant: the restored state equals the state of the old cluster at the backup's entry, and the new cluster links with
no old node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from chaos.sim.checks.stored import StoredMessages
from chaos.sim.world.cluster import CLUSTER, GROUP, LOG, SimulatedCluster
from chaos.sim.world.compared_machines import Program, WatchedMachine
from chaos.sim.world.disk import SimulatedDisk
from cluster.snapshots.backup import CONTENTS, SUMS, BadBackup, Contents, check, pack_contents, sum_line
from cluster.snapshots.restore import restore
from cluster.storage.identity import Owner

if TYPE_CHECKING:
    from chaos.sim.checks.checks import Checks
    from chaos.sim.checks.stored import MessagesOf
    from chaos.sim.world.cluster import SimulatedNode
    from chaos.sim.world.world import SimulatedWorld
    from cluster.machine import Machine

REQUEST_INTERVAL_S = 0.2
"""Seconds between two requests for a backup that the node has not made yet."""
DIALLED_S = 5.0
"""Seconds in which every old node tries to connect with the new node."""
PATIENCE_S = 60.0
SLICE_S = 0.25
SLOW_DISK = 10.0


class RestoredMachine(WatchedMachine):
    """A machine that is compared with the backup after the restored steps, before the new cluster changes it."""

    def __init__(self, inner: Machine, checks: Checks, steps: int) -> None:
        super().__init__(inner, checks)
        self.is_compared = False
        self._checks = checks
        self._steps = steps

    def outage(self, length_ms: int) -> None:
        self._compare()
        super().outage(length_ms)

    def origin_down(self, origin: str, time_ms: int, *, evicted: bool) -> Sequence[Any]:
        self._compare()
        return super().origin_down(origin, time_ms, evicted=evicted)

    def end_entry(self, time_ms: int) -> Sequence[Any]:
        self._compare()
        return super().end_entry(time_ms)

    def _compare(self) -> None:
        if self.position == self._steps:
            self._checks.same_state(self.position, self.inner.dump())
            self.is_compared = True


class Backups:
    """Takes a single backup in a run and restores a new cluster from it at the end."""

    def __init__(
        self, world: SimulatedWorld, cluster: SimulatedCluster, checks: Checks, messages_of: MessagesOf
    ) -> None:
        self.contents: Contents | None = None
        """Contents of the backup; None until a backup was taken."""
        self._world = world
        self._cluster = cluster
        self._checks = checks
        self._messages_of = messages_of
        self._random = world.random("backup")
        self._files = SimulatedDisk(world.random("backup disk"), world.after)
        """Disk that holds the backup."""

    def begin(self) -> None:
        """Ask a node for a backup at a random moment, and ask further nodes if it has no backup to give."""
        self._world.after(
            self._random.uniform(0.0, self._cluster.options.duration_s), self._request_from_any_node
        )

    def _request_from_any_node(self) -> None:
        node = self._random.choice(self._cluster.nodes)
        if node.up and node.has_started and node.program is Program.CURRENT:
            self._request(node, node.incarnation, node.group.engine.applied_index)
        else:
            self._world.after(REQUEST_INTERVAL_S, self._request_from_any_node)

    def _request(self, node: SimulatedNode, incarnation: int, least: int) -> None:
        if not node.up or node.incarnation != incarnation or self._random.random() < 0.05:
            self._request_from_any_node()
            return
        node.runtime.enter(partial(self._take, node, least))
        if self.contents is None:
            self._world.after(REQUEST_INTERVAL_S, partial(self._request, node, incarnation, least))

    def _take(self, node: SimulatedNode, least: int) -> None:
        contents = None if self.contents else node.group.backups.take(least, "")
        if contents is None:
            return
        try:
            files = {name: node.disk.read_file(f"{LOG}/{name}") for name, _ in contents.files}
            self._store({CONTENTS: pack_contents(contents), **files})
            check(self._files, contents, repr)
        except (OSError, BadBackup) as error:
            if not self._checks.may_find_damage(node):
                self._checks.fail(f"{node.name} gives a bad backup: {error}")
            return
        finally:
            node.group.backups.give_back(contents)
        if node.group.engine.applied_index == contents.index:
            self._checks.same_state(node.machine.position, node.machine.inner.dump())
        self.contents = contents

    def _store(self, files: dict[str, bytes]) -> None:
        self._files.lose_everything()
        for name, data in files.items():
            self._files.replace_file(name, data)
        sums = [sum_line(sha256(data).hexdigest(), name) for name, data in files.items()]
        self._files.replace_file(SUMS, "".join(sums).encode())

    # The new cluster

    def check_restored(self) -> None:
        """Restore a new cluster from the backup while the old cluster runs, and check it.

        Without a backup, do nothing.
        """
        if self.contents is None:
            return
        checks = self._checks.continued(self.contents.index)
        options = replace(self._cluster.options, is_upgrade=False, raises_version=True)
        cluster = SimulatedCluster(
            self._world, options, self._cluster.parts, checks, network=self._cluster.network
        )
        checks.watch(cluster)
        first, *others = cluster.nodes
        old, *old_peers = self._cluster.nodes
        old.take_down()
        self._restore(self.contents, first, checks)
        first.start()
        self._world.run_until(self._world.now_s + DIALLED_S)
        self._until(lambda: self._serves_alone(first), checks, "the restored node does not lead")
        for node in old_peers:
            node.take_down()
        for node in others:
            node.joins = True
            node.start()
        self._until(cluster.settled, checks, "the restored cluster has not converged")
        checks.check_agreement()
        StoredMessages(cluster, checks, self._messages_of).check_all()

    def _restore(self, contents: Contents, node: SimulatedNode, checks: Checks) -> None:
        machine = RestoredMachine(checks.machine(Program.CURRENT).inner, checks, len(checks.history))
        owner = Owner(CLUSTER, node.name, 0)
        wall_ms = node.wall.now_ms()
        restore(self._files, contents, node.disk, GROUP, owner, node.address, machine, wall_ms, self._random)
        if not machine.is_compared:
            checks.fail(f"the backup has not all that there was at entry {contents.index}")

    def _serves_alone(self, node: SimulatedNode) -> bool:
        """Return whether the restored node leads and has applied its log, while the old nodes dial it."""
        if self._cluster.network.linked(node.name):
            self._checks.fail(f"{node.name} is restored, and linked with nodes of its former life")
        return node.group.engine.is_leader and not node.group.pending_batches

    def _until(self, done: Callable[[], bool], checks: Checks, problem: str) -> None:
        deadline_s = self._world.now_s + PATIENCE_S * (1 + self._cluster.options.disk_slowness / SLOW_DISK)
        while not done():
            if self._world.now_s > deadline_s:
                checks.fail(problem)
            self._world.run_until(self._world.now_s + SLICE_S)
