"""The nemesis: injects faults into a live cluster, alone and mixed, in an order that a seed determines.

A fault first chooses its victims. It returns a `Harm`, which hurts them and repairs them some seconds later. The caller
writes the history.

Faults that stop nodes or touch their disks come one at a time; a fault of the network may coincide with them. So at
most a single node lacks data that only its peers have (wiped, replaced, just joined, or with a damaged segment). The
loss of a second log would then lose confirmed messages, which no such system can prevent. But a crash of all processes,
or the loss of all unsynced data on all disks, must not lose any message.

Invariant: after a fault, even a fault that failed half-way, `heal` leaves a healthy cluster, or reports its defect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, count, permutations
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from chaos.live.cluster import LiveClusterError
from chaos.live.faulty_node import Faults
from chaos.live.toxiproxy import ToxiproxyError
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from chaos.live.cluster import LiveCluster, ProxyStream


DURATION_S = (2.0, 8.0)
"""Seconds that a fault lasts."""
GAP_S = (2.0, 6.0)
"""Seconds of quiet between two faults of the same lane, after the processes are up."""
REPAIR_PATIENCE_S = 60.0
NOTICE_PATIENCE_S = 30.0
"""Seconds in which a node may find a flipped bit before it is flipped back."""
HEAL_PATIENCE_S = 90.0
CLIENTS_CUT = 0.4
"""Probability that a partition also cuts the isolated nodes off from their clients."""
MEMBERS_MIN = 3
"""Members that a cluster keeps at least."""
BACK = 0.4
"""Probability that a step of an upgrade goes back, when a node can go back."""
NODES, CLIENTS = "nodes", "clients"
"""The two kinds of peers that a node has connections with."""

NO_FAULTS = Faults()

_CLOCK_JUMPS_MS = (300_000, 3 * 86_400_000)
"""Upper bounds of clock jumps in ms; each jump draws a bound first."""
_ELECTION_PATIENCE_S = 10.0
_FLAP_S = 0.3
_LAG_S = 0.7
_POLL_S = 0.1
_SEGMENTS = (".segment", ".sparse")
_TOXICS = count(1)
_FAILURES = (LiveClusterError, ToxiproxyError, OSError)


class Record(Protocol):
    """Writes a row of the history."""

    def __call__(self, kind: str, fault: str, nodes: Sequence[str], detail: str, /) -> None:
        """Write a row.

        `kind` is invoke, then ok or fail; or only info if the fault was left out. `detail` is JSON.
        """
        ...


class NemesisError(OperatingError):
    """An unknown fault."""


@dataclass(frozen=True, slots=True)
class Harm:
    """A fault that is about to happen."""

    nodes: Sequence[str]
    """The nodes that the fault hurts."""
    detail: dict[str, Any]
    begin: Callable[[], Awaitable[object]]
    end: Callable[[], Awaitable[object]]
    """End the fault; also called after a `begin` that failed."""
    lasts: bool = True
    """Whether to wait between `begin` and `end`."""


# Processes


async def kill_leader(cluster: LiveCluster, _chance: Random) -> Harm:
    return _killed(cluster, [await cluster.leader(_ELECTION_PATIENCE_S)])


async def kill_follower(cluster: LiveCluster, chance: Random) -> Harm:
    leader = await cluster.leader(_ELECTION_PATIENCE_S)
    return _killed(cluster, [chance.choice([name for name in cluster.names if name != leader])])


async def kill_random(cluster: LiveCluster, chance: Random) -> Harm:
    return _killed(cluster, _some(cluster, chance))


async def kill_all(cluster: LiveCluster, chance: Random) -> Harm:
    return _killed(cluster, chance.sample(cluster.names, len(cluster.names)))


def _killed(cluster: LiveCluster, names: Sequence[str]) -> Harm:
    return Harm(names, {}, partial(_kill, cluster, names), partial(_start, cluster, names))


async def pause(cluster: LiveCluster, chance: Random) -> Harm:
    """Freeze processes; in half of the cases the leader's."""
    names = _some(cluster, chance)
    if chance.random() < 0.5:
        names = [await cluster.leader(_ELECTION_PATIENCE_S)]

    async def freeze() -> None:
        for name in names:
            cluster.freeze(name)

    async def thaw() -> None:
        for name in filter(cluster.frozen, names):
            cluster.thaw(name)

    return Harm(names, {}, freeze, thaw)


async def restart(cluster: LiveCluster, chance: Random) -> Harm:
    name = chance.choice(cluster.names)
    return Harm([name], {}, partial(cluster.stop, name), partial(_start, cluster, [name]))


async def rolling_restart(cluster: LiveCluster, chance: Random) -> Harm:
    """Restart the nodes in turn, as an update does: the next node after the previous node serves."""
    names = chance.sample(cluster.names, len(cluster.names))
    return Harm(names, {}, partial(_roll, cluster, names), partial(_start, cluster, names), lasts=False)


async def _roll(cluster: LiveCluster, names: Sequence[str]) -> None:
    for name in names:
        await cluster.stop(name)
        await cluster.start(name)
        await cluster.wait_ready(name)


# Operators


async def rotate_secret(cluster: LiveCluster, chance: Random) -> Harm:
    """Change the secret of the nodes as an operator does, with the restarts that end the old connections."""
    names = chance.sample(cluster.names, len(cluster.names))

    async def rotate() -> None:
        await cluster.change_secret(names)
        await _roll(cluster, names)

    async def end() -> None:
        for name in names:
            cluster.write_secrets(name)
        await _start(cluster, names)

    return Harm(names, {}, rotate, end, lasts=False)


async def member_add(cluster: LiveCluster, chance: Random) -> Harm:
    """Let a node join; it may have been a member before, with a different directory."""
    if not cluster.absent:
        raise LiveClusterError(f"{len(cluster.names)} members are the most")
    await cluster.wait_caught_up(REPAIR_PATIENCE_S)
    name = chance.choice(cluster.absent)
    return Harm([name], {}, partial(cluster.join, name), partial(_all_repaired, cluster), lasts=False)


async def member_remove(cluster: LiveCluster, chance: Random) -> Harm:
    """Remove a member: the leader, a running node, or a node that was killed before."""
    if len(cluster.names) <= MEMBERS_MIN:
        raise LiveClusterError(f"{MEMBERS_MIN} members are the fewest")
    name = await _spared(cluster, chance)
    state = chance.choice(("leads", "up", "dead"))
    if state == "leads":
        name = await cluster.leader(_ELECTION_PATIENCE_S)
    detail: dict[str, Any] = {"state": state}

    async def remove() -> None:
        if state == "dead":
            await cluster.kill(name)
        detail["has_ended"] = await cluster.remove(name)

    return Harm([name], detail, remove, partial(_returned, cluster, name), lasts=False)


async def replace(cluster: LiveCluster, chance: Random) -> Harm:
    """Replace a node whose directory is lost: by an empty directory of its own, or by a node with a new name.

    In a cluster that can spare two nodes, a second node is down meanwhile.
    """
    lost = await _spared(cluster, chance)
    new = chance.choice([lost, *cluster.absent])
    others = [name for name in cluster.names if name != lost]
    down = chance.sample(others, (len(cluster.names) - 1) // 2 - 1)
    detail = {"by": new, "down": down}

    async def lose() -> None:
        if new != lost:  # no node should be restarted while others are down
            await cluster.list_everybody(cluster.names)
        await _kill(cluster, [lost, *down])
        await cluster.wipe(lost)
        if new == lost:
            await cluster.replace(lost)
            await cluster.start(lost)
            await cluster.wait_votes(lost)
        else:  # two of three would be no majority of four voters, so the lost node is removed first
            await cluster.remove(lost)
            await cluster.join(new)

    async def end() -> None:
        await _start(cluster, down)
        if new == lost:
            await _all_repaired(cluster)
        else:
            await _returned(cluster, lost)

    return Harm([lost, *down], detail, lose, end, lasts=False)


async def _returned(cluster: LiveCluster, name: str) -> None:
    """Let a node whose removal may have failed join as a new member, and wait until all nodes have caught up."""
    if name in cluster.names:
        if cluster.running(name):
            await cluster.kill(name)
        await cluster.join(name)
    await _all_repaired(cluster)


async def _all_repaired(cluster: LiveCluster) -> None:
    await _start(cluster, cluster.names)
    await cluster.wait_caught_up(REPAIR_PATIENCE_S)


async def upgrade(cluster: LiveCluster, chance: Random) -> Harm:
    """Move a node from the release to today's program, or back while a node still runs the release."""
    old = cluster.on_release
    if not old:
        raise LiveClusterError("all nodes run today's program")
    await cluster.wait_caught_up(REPAIR_PATIENCE_S)
    new = [name for name in cluster.names if name not in old]
    goes_back = bool(new) and chance.random() < BACK
    name = chance.choice(new if goes_back else old)
    end = chance.choice((cluster.stop, cluster.kill))

    async def change() -> None:
        await end(name)
        await cluster.change_program(name)

    detail = {"to": "release" if goes_back else "today", "by": end.__name__}
    return Harm([name], detail, change, partial(_all_repaired, cluster))


# Partitions


async def partition_majority(cluster: LiveCluster, chance: Random) -> Harm:
    """Cut a minority off from the majority."""
    few = chance.sample(cluster.names, (len(cluster.names) - 1) // 2)
    many = [name for name in cluster.names if name not in few] + _clients_too(chance)
    return _cut(cluster, few, _both_ways((one, other) for one in few for other in many))


async def partition_leader(cluster: LiveCluster, chance: Random) -> Harm:
    """Cut the leader off from all its peers."""
    leader = await cluster.leader(_ELECTION_PATIENCE_S)
    others = [name for name in cluster.names if name != leader] + _clients_too(chance)
    return _cut(cluster, [leader], _both_ways((leader, other) for other in others))


async def partition_ring(cluster: LiveCluster, chance: Random) -> Harm:
    """Let each node reach its two neighbours in a ring only, so that all nodes have different majorities.

    In a ring of three all nodes are neighbours, so there each link passes bytes in a single direction only.
    """
    ring = chance.sample(cluster.names, len(cluster.names))
    forward = [(ring[place - 1], name) for place, name in enumerate(ring)]
    if len(ring) == 3:
        return _cut(cluster, ring, [(target, source) for source, target in forward])
    passing = _both_ways(forward)
    return _cut(cluster, ring, [pair for pair in permutations(ring, 2) if pair not in passing])


async def partition_bridge(cluster: LiveCluster, chance: Random) -> Harm:
    """Separate two halves that only a single node, the bridge, can both reach."""
    _bridge, *others = chance.sample(cluster.names, len(cluster.names))
    half = len(others) // 2
    return _cut(cluster, others, _both_ways((one, other) for one in others[:half] for other in others[half:]))


async def partition_one_way(cluster: LiveCluster, chance: Random) -> Harm:
    """Drop all bytes from a node, or all bytes to a node, for some peers or for all."""
    victim, *others = chance.sample(cluster.names, len(cluster.names))
    others = others[: chance.randint(1, len(others))] + _clients_too(chance)
    if chance.random() < 0.5:
        return _cut(cluster, [victim], [(victim, other) for other in others])
    return _cut(cluster, [victim], [(other, victim) for other in others])


def _clients_too(chance: Random) -> list[str]:
    """Return `[CLIENTS]` if the clients must be cut off too, else []."""
    return [CLIENTS] if chance.random() < CLIENTS_CUT else []


def _both_ways(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [way for one, other in pairs for way in ((one, other), (other, one))]


def _cut(cluster: LiveCluster, names: Sequence[str], ways: Sequence[tuple[str, str]]) -> Harm:
    """Drop bytes in these directions. Connections stay open meanwhile, and break when bytes pass again."""
    detail = {"cut": [f"{source}>{target}" for source, target in ways]}
    links = [link for source, target in ways for link in _links(cluster, source, target)]
    return _hurt(cluster, names, detail, links, "timeout", timeout=0)


def _links(cluster: LiveCluster, source: str, target: str) -> Sequence[ProxyStream]:
    """Return the streams from a source to a target; either may be the clients of a node."""
    if target == CLIENTS:
        return cluster.clients_of(source)[1:]
    return cluster.clients_of(target)[:1] if source == CLIENTS else cluster.links(source, target)


# Bad connections


async def latency(cluster: LiveCluster, chance: Random) -> Harm:
    return _slow(cluster, chance, "latency", latency=chance.randint(20, 300))


async def jitter(cluster: LiveCluster, chance: Random) -> Harm:
    mean_ms = chance.randint(20, 150)
    return _slow(cluster, chance, "latency", latency=mean_ms, jitter=mean_ms)


async def bandwidth(cluster: LiveCluster, chance: Random) -> Harm:
    return _slow(cluster, chance, "bandwidth", rate=chance.randint(20, 500))  # KB/s


async def slicer(cluster: LiveCluster, chance: Random) -> Harm:
    """Let bytes arrive in small pieces."""
    size = chance.randint(16, 512)
    return _slow(
        cluster, chance, "slicer", average_size=size, size_variation=size // 2, delay=chance.randint(0, 50)
    )


def _slow(cluster: LiveCluster, chance: Random, kind: str, **attributes: int) -> Harm:
    """Hurt the links of a single node or of all nodes: with peers, with clients, or both."""
    names: Sequence[str] = chance.choice([[chance.choice(cluster.names)], cluster.names])
    traffic = chance.choice(([NODES], [CLIENTS], [NODES, CLIENTS]))
    links: list[ProxyStream] = []
    if NODES in traffic:
        pairs = [pair for pair in permutations(cluster.names, 2) if not set(pair).isdisjoint(names)]
        links += [link for pair in pairs for link in cluster.links(*pair)]
    if CLIENTS in traffic:
        links += [link for name in names for link in cluster.clients_of(name)]
    return _hurt(cluster, names, {kind: attributes, "with": traffic}, links, kind, **attributes)


def _hurt(
    cluster: LiveCluster,
    names: Sequence[str],
    detail: dict[str, Any],
    links: Sequence[ProxyStream],
    kind: str,
    **attributes: int,
) -> Harm:
    toxic = f"{kind}{next(_TOXICS)}"
    begin = partial(cluster.hurt, links, toxic, kind, **attributes)
    return Harm(names, detail, begin, partial(cluster.relieve, toxic))


async def reset_peer(cluster: LiveCluster, chance: Random) -> Harm:
    """Reset connections between nodes, again and again."""
    pairs = list(combinations(cluster.names, 2))
    pairs = chance.sample(pairs, chance.randint(1, len(pairs)))
    names = sorted({name for pair in pairs for name in pair})
    links = [link for pair in pairs for link in cluster.links(*pair)]
    return _reset(cluster, names, links, chance.randint(1, 5))


async def client_reset(cluster: LiveCluster, chance: Random) -> Harm:
    """Reset all connections of the clients of a single node or of all nodes, again and again."""
    names: Sequence[str] = chance.choice([[chance.choice(cluster.names)], cluster.names])
    return _reset(cluster, names, [cluster.clients_of(name)[0] for name in names], chance.randint(1, 3))


def _reset(cluster: LiveCluster, names: Sequence[str], links: Sequence[ProxyStream], times: int) -> Harm:
    harm = _hurt(cluster, names, {"times": times}, links, "reset_peer", timeout=0)

    async def flap() -> None:
        for _ in range(times):
            await harm.begin()
            await asyncio.sleep(_FLAP_S)  # a connection is reset when it carries bytes
            await harm.end()
            await asyncio.sleep(_FLAP_S)

    return dataclasses.replace(harm, begin=flap, lasts=False)


# Disks and clocks


async def disk_full(cluster: LiveCluster, chance: Random) -> Harm:
    names: Sequence[str] = chance.choice([[chance.choice(cluster.names)], cluster.names])
    return _faulty(cluster, names, disk_full=True, seed=chance.getrandbits(32))


async def slow_fsync(cluster: LiveCluster, chance: Random) -> Harm:
    delay_s = round(chance.uniform(0.02, 0.4), 3)
    return _faulty(cluster, _some(cluster, chance), sync_delay_s=delay_s, seed=chance.getrandbits(32))


async def clock_jump(cluster: LiveCluster, chance: Random) -> Harm:
    names: Sequence[str] = chance.choice([[chance.choice(cluster.names)], cluster.names])
    offset_ms = chance.choice((-1, 1)) * chance.randint(1_000, chance.choice(_CLOCK_JUMPS_MS))
    return _faulty(cluster, names, clock_offset_ms=offset_ms)


def _faulty(cluster: LiveCluster, names: Sequence[str], **faults: float) -> Harm:
    async def begin() -> None:
        for name in names:
            cluster.set_faults(name, **faults)

    async def end() -> None:
        for name in names:
            cluster.set_faults(name, **{fault: getattr(NO_FAULTS, fault) for fault in faults})

    return Harm(names, faults, begin, end)


async def power_loss(cluster: LiveCluster, chance: Random) -> Harm:
    """Remove unsynced writes from a single node or from all nodes at once.

    The disks are slow before, so that some writes are unsynced.
    """
    names: Sequence[str] = chance.choice([[chance.choice(cluster.names)], cluster.names])
    seeds = {name: chance.getrandbits(32) for name in names}
    detail: dict[str, Any] = {"seeds": seeds}
    slow = _faulty(cluster, names, sync_delay_s=round(chance.uniform(0.05, 0.3), 3))

    async def lose() -> None:
        await slow.begin()
        await asyncio.sleep(_LAG_S)
        await _kill(cluster, names)
        await slow.end()
        detail["unsynced_bytes"] = {name: await cluster.lose_power(name, seeds[name]) for name in names}

    async def end() -> None:
        await slow.end()
        await _start(cluster, names)

    return Harm(names, detail, lose, end)


async def bit_flip(cluster: LiveCluster, chance: Random) -> Harm:
    """Damage a segment of a node while it is down; its peers must restore the lost data.

    The node finds the damage when it reads the place or verifies the segment, which may be much later. The damage is
    not left that long, because two nodes with damage in the same place could not help each other.
    """
    name, seed = await _spared(cluster, chance), chance.getrandbits(32)
    detail: dict[str, Any] = {"seed": seed}
    flips: list[Flip] = []

    async def damage() -> None:
        await cluster.kill(name)
        flip = flip_bit(cluster.data_dir(name), Random(seed))
        flips.append(flip)
        detail.update(file=flip.file.name, bit=flip.bit)
        await _start(cluster, [name])

    async def repaired() -> None:
        await _start(cluster, [name])
        for flip in flips:
            detail["noticed"] = await _is_noticed(flip)
        await cluster.wait_caught_up(REPAIR_PATIENCE_S)

    return Harm([name], detail, damage, repaired, lasts=False)


async def wipe(cluster: LiveCluster, chance: Random) -> Harm:
    """Delete a node's data directory while it is down."""
    name = await _spared(cluster, chance)

    async def delete() -> None:
        await cluster.kill(name)
        await cluster.wipe(name)

    return Harm([name], {}, delete, partial(_all_repaired, cluster))


async def _spared(cluster: LiveCluster, chance: Random) -> str:
    """Choose a node whose data its peers hold completely."""
    await cluster.wait_caught_up(REPAIR_PATIENCE_S)
    return chance.choice(cluster.names)


class Flip(NamedTuple):
    """A flipped bit."""

    file: Path
    bit: int
    inode: int

    def invert(self) -> None:
        """Flip the bit, unless the file was replaced."""
        with suppress(FileNotFoundError), self.file.open("r+b") as file:
            if os.fstat(file.fileno()).st_ino == self.inode:
                (byte,) = os.pread(file.fileno(), 1, self.bit // 8)
                os.pwrite(file.fileno(), bytes((byte ^ 1 << self.bit % 8,)), self.bit // 8)

    def is_there(self) -> bool:
        """Return whether the damaged file is still in its place."""
        try:
            return self.file.stat().st_ino == self.inode
        except FileNotFoundError:
            return False


def flip_bit(data_dir: Path, chance: Random) -> Flip:
    """Flip a random bit in a segment. Raises LiveClusterError if the directory has no segment."""
    segments = sorted(found for found in data_dir.glob("groups/*/log/*") if found.suffix in _SEGMENTS)
    if not segments:
        raise LiveClusterError(f"{data_dir} holds no segment")
    file = chance.choice(segments)
    status = file.stat()
    flip = Flip(file, chance.randrange(status.st_size * 8), status.st_ino)
    flip.invert()
    return flip


async def _is_noticed(flip: Flip) -> bool:
    """Return whether the node replaces the damaged file in time; otherwise flip the bit back."""
    try:
        async with asyncio.timeout(NOTICE_PATIENCE_S):
            while flip.is_there():  # noqa: ASYNC110 -- a file has no event
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        flip.invert()
        return False
    return True


# Shared helpers


def _some(cluster: LiveCluster, chance: Random) -> Sequence[str]:
    """Return a random number of nodes, at least a single node."""
    return chance.sample(cluster.names, chance.randint(1, len(cluster.names)))


async def _kill(cluster: LiveCluster, names: Sequence[str]) -> None:
    await asyncio.gather(*map(cluster.kill, names))


async def _start(cluster: LiveCluster, names: Sequence[str]) -> None:
    """Start the nodes that are down."""
    for name in names:
        if not cluster.running(name):
            await cluster.start(name)


# The table of faults


_NETWORK = (
    partition_majority,
    partition_leader,
    partition_ring,
    partition_bridge,
    partition_one_way,
    latency,
    jitter,
    bandwidth,
    slicer,
    reset_peer,
    client_reset,
)
_PROCESS = (
    kill_leader,
    kill_follower,
    kill_random,
    kill_all,
    pause,
    restart,
    rolling_restart,
    clock_jump,
)
_OPERATOR = (rotate_secret, member_add, member_remove, replace)
_DISK = (disk_full, slow_fsync, power_loss, bit_flip, wipe)
_FAULTS = {fault.__name__: fault for fault in (*_PROCESS, *_NETWORK, *_DISK, *_OPERATOR, upgrade)}
_NOT_ON_RELEASE = {fault.__name__ for fault in (*_OPERATOR, clock_jump, disk_full, slow_fsync, power_loss)}
"""Faults that release 0.1 does not support, or that need the disk or clock of today's program."""

NAMES = tuple(_FAULTS)
ALL = "all"
JOINING = {member_add.__name__, replace.__name__}
"""Faults that let new nodes join."""
UPGRADE = upgrade.__name__
"""In no group, because it needs a cluster that begins with a release."""
GROUPS = {
    ALL: tuple(name for name in NAMES if name != UPGRADE),
    "network": tuple(fault.__name__ for fault in _NETWORK),
    "process": tuple(fault.__name__ for fault in _PROCESS),
    "disk": tuple(fault.__name__ for fault in _DISK),
    "operator": tuple(fault.__name__ for fault in _OPERATOR),
}


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Return the faults that these names of faults and groups mean, each once. Raises NemesisError."""
    found: dict[str, None] = {}
    for name in names:
        if name not in _FAULTS and name not in GROUPS:
            raise NemesisError(f"unknown nemesis {name!r}; there are {', '.join((*GROUPS, *NAMES))}")
        found |= dict.fromkeys(GROUPS.get(name, (name,)))
    return tuple(found)


# Driving


async def run(cluster: LiveCluster, names: Iterable[str], seed: int, until_s: float, record: Record) -> None:
    """Hurt the cluster with these faults, or groups of them, for `until_s` seconds.

    A fault that cannot be carried out or repaired is recorded as failed, and the run goes on. `heal` must follow in any
    case.
    """
    wanted = chosen(names)
    ends_s = asyncio.get_running_loop().time() + until_s
    lanes = {
        "network": [name for name in wanted if name in GROUPS["network"]],
        "nodes": [name for name in wanted if name not in GROUPS["network"]],
    }
    async with asyncio.TaskGroup() as tasks:
        for lane, of_lane in lanes.items():
            if of_lane:
                tasks.create_task(_hurt_until(cluster, of_lane, Random(f"{seed} {lane}"), ends_s, record))


async def _hurt_until(
    cluster: LiveCluster, names: Sequence[str], chance: Random, ends_s: float, record: Record
) -> None:
    clock = asyncio.get_running_loop().time
    bag: list[str] = []
    while True:
        gap_s, duration_s = chance.uniform(*GAP_S), chance.uniform(*DURATION_S)
        with suppress(LiveClusterError):  # it is hurt even if it has not started
            await cluster.wait_started(max(ends_s - clock(), 0.0))
        if clock() + gap_s >= ends_s:
            return
        await asyncio.sleep(gap_s)
        if not bag:  # each fault once before any repeats, so that a short run has many kinds
            bag = chance.sample(names, len(names))
        await carry_out(bag.pop(), cluster, Random(chance.getrandbits(64)), duration_s, record)


async def carry_out(
    name: str, cluster: LiveCluster, chance: Random, duration_s: float, record: Record
) -> bool:
    """Begin a fault, wait, end it; return whether it went as intended."""
    try:
        if name in _NOT_ON_RELEASE:
            await cluster.wait_upgraded(patience_s=0.0)
        harm = await _FAULTS[name](cluster, chance)
    except LiveClusterError as error:  # no leader is known, or the previous fault is not over
        record("info", name, (), json.dumps({"left out": _line(error)}))
        return False
    record("invoke", name, harm.nodes, json.dumps(harm.detail))
    failed: dict[str, str] = {}
    try:
        await harm.begin()
        if harm.lasts:
            await asyncio.sleep(duration_s)
    except _FAILURES as error:
        failed["error"] = _line(error)
    try:
        await harm.end()
    except _FAILURES as error:
        failed["error at its end"] = _line(error)
    record("fail" if failed else "ok", name, harm.nodes, json.dumps(harm.detail | failed))
    return not failed


def _line(error: Exception) -> str:
    """Return the first line of an error, without log lines."""
    return str(error).partition("\n")[0]


async def heal(cluster: LiveCluster, patience_s: float = HEAL_PATIENCE_S) -> None:
    """End all faults, finish an upgrade, and wait until all members serve, have caught up and agree on the members.

    Raises LiveClusterError that names the node that failed, or that ended unexpectedly, with its last log lines.
    """
    await cluster.relieve()
    for name in cluster.names:
        cluster.set_faults(name, **asdict(NO_FAULTS))
        if cluster.frozen(name):
            cluster.thaw(name)
        if not cluster.running(name):
            await cluster.start(name)
    await cluster.wait_caught_up(patience_s)
    for name in cluster.on_release:
        await cluster.stop(name)
        await cluster.change_program(name)
        await cluster.start(name)
        await cluster.wait_caught_up(patience_s)
    await cluster.wait_upgraded(patience_s)
    if cluster.crashes:
        raise LiveClusterError("\n".join(cluster.crashes))
