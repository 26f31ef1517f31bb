"""Links between simulated processes: TCP connections with adversarial timing and losses.

A handshake takes an instant at each end. The acceptor decides about the dialler when its proof arrives; the dialler
decides about the acceptor when it is welcomed.

Invariant: the network keeps the promises of TCP, and no more. Each direction is FIFO without gaps as long as the
connection lives. Both ends learn of its end independently, at different times. Bytes in flight at the end may be lost
or may arrive. The limits and the code of the real links decide which frames a link accepts and when it drops its peer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from cluster.configuration.configuration import PeerAddress, Versions
from cluster.configuration.history import Configurations
from cluster.log.entry import ENTRY_BYTES_MAX
from cluster.raft.messages import FRAME_BYTES_MAX
from cluster.snapshots.chunks import CHUNK_BYTES
from cluster.snapshots.receiver import WINDOW
from cluster.transport.admission import Link, PeerAdmission
from cluster.transport.connection import FrameTooLargeError, LinkBacklog, LinkLimits
from cluster.transport.handshake import PROCESS_BYTES, VERSIONS, Terms, disagreement
from cluster.transport.peer_links import redial_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from chaos.sim.world.world import SimulatedRuntime, SimulatedWorld
    from cluster.runtime.ports import Buffer
    from cluster.transport.ports import LinkEvents

GROUP = 0
PROBES = 6
"""Times that an end probes a lost peer's process."""
REFUSES_FOR_S = 0.03
"""Seconds of refused connections after which a peer counts as dead, as with the real links."""
BRIEF_S = 1.0
"""Seconds; a connection that ends sooner was probably rejected by the other side."""
PART_S = 0.1
"""Seconds of transfer per part; a frame that takes longer arrives in parts."""
PART = b""
"""Stands in a pipe for a part of the next frame."""


class End(Enum):
    """State of a connection as one of its ends sees it."""

    OPENING = 0
    OPEN = 1
    CLOSED = 2


class Host(Enum):
    """Answer of a dialled address."""

    UP = "the process listens"
    REFUSING = "the host is up, no process listens"
    SILENT = "the host has no power"


@dataclass(slots=True)
class Place:
    """A node's listening address, present or last."""

    name: str
    host: Host


def address_of(name: str) -> PeerAddress:
    """Return the default listening address of a node."""
    return PeerAddress(name, 1)


def small_limits(entry_bytes_max: int = ENTRY_BYTES_MAX) -> LinkLimits:
    """Return small versions of the real links' limits, for entries of at most this size.

    Snapshot chunks keep their real size.
    """
    beside_entry = FRAME_BYTES_MAX - ENTRY_BYTES_MAX
    high_water_bytes = 64 * 1024
    return LinkLimits(
        frame_bytes_max=max(entry_bytes_max, CHUNK_BYTES) + beside_entry,
        queued_bytes_max=2 * high_water_bytes + WINDOW * CHUNK_BYTES,
        high_water_bytes=high_water_bytes,
        low_water_bytes=high_water_bytes // 4,
    )


@dataclass(slots=True)
class NetworkOptions:
    """Quality of a run's network."""

    delay_min_s: float = 0.0005
    delay_max_s: float = 0.01
    spike_probability: float = 0.0
    spike_max_s: float = 0.0
    redial_s: float = 0.2
    """Mean seconds between attempts to connect."""
    timeout_min_s: float = 1.0
    timeout_max_s: float = 5.0
    """Largest number of seconds after which TCP drops an unanswered connection."""
    bytes_per_s: int = 2**40
    """Bandwidth of each connection, in each direction."""
    limits: LinkLimits = field(default_factory=small_limits)


@dataclass(slots=True)
class Pipe:
    """A direction of a connection. A single event at a time moves its head."""

    source: str
    target: str
    backlog: LinkBacklog
    frames: deque[tuple[float, bytes | None]] = field(default_factory=deque)
    """Arrival time and content: a frame, `PART`, or None for the end of the stream."""
    last_arrival_s: float = 0.0
    queued_bytes: int = 0
    """Bytes sent and not yet taken by the receiving process."""
    congested: bool = False
    moving: bool = False


ANY_VERSIONS = Versions(0, 2**16 - 1)


class LinkEpoch:
    """A connection of a pair of nodes, which is an epoch of their link."""

    def __init__(self, dialler: str, acceptor: str, limits: LinkLimits, now_s: float) -> None:
        self.dialler = dialler
        self.acceptor = acceptor
        self.ends = {dialler: End.OPENING, acceptor: End.OPENING}
        self.pipes = {
            dialler: Pipe(dialler, acceptor, LinkBacklog(limits)),
            acceptor: Pipe(acceptor, dialler, LinkBacklog(limits)),
        }
        self.terms: dict[str, Terms] = {}
        """The terms that each end sent in the handshake."""
        self.protocol = VERSIONS[-1]
        """The newest protocol version that both ends speak."""
        self.made_s = now_s
        self.received_s = {dialler: now_s, acceptor: now_s}
        """When each end last received anything."""
        self.welcomed = False
        """Whether the acceptor has let the dialler in; it may have changed its mind since."""
        self.broken = False
        """Reset in flight: no further bytes arrive, though the ends may not know yet."""


def _not_listened_to(_peer: str, _frame: bytes) -> None:
    """Ignore a frame."""


class SimulatedLinks:
    """The `Links` port of a single process start."""

    def __init__(
        self,
        network: Network,
        name: str,
        runtime: SimulatedRuntime,
        admission: PeerAdmission,
        seeds: Sequence[PeerAddress],
        protocol: int,
    ) -> None:
        self.name = name
        self.speaks = protocol
        self.known = admission
        self.runtime = runtime
        self.seeds = seeds
        self.current: dict[str, LinkEpoch] = {}
        self.dialling: set[str | PeerAddress] = set()
        """Peers and seeds with a dial scheduled or under way."""
        self.brief: dict[str, int] = {}
        """Number of successive brief connections with each peer."""
        self.refused_since_s: dict[str, float] = {}
        """When the host of each lost peer began to refuse connections; a different answer resets it."""
        self.events: LinkEvents | None = None
        self.frame_received: Callable[[str, bytes], None] = _not_listened_to
        """Called with the peer and each of its frames, before `events`."""
        self._network = network

    def places(self, dialled: str | PeerAddress) -> tuple[PeerAddress, ...]:
        """Return the addresses at which to dial a peer or seed; empty if it must not be dialled."""
        if isinstance(dialled, str):
            return self.known.possible_addresses(dialled) if dialled in self.known.addresses else ()
        return (dialled,) if dialled in self.known.seeds(self.seeds) else ()

    def configure(self, member_id: bytes, configurations: Configurations) -> None:
        linked = {peer: connection.terms[peer] for peer, connection in self.current.items()}
        self._network.configured(self, self.known.configure(member_id, configurations, linked))

    def register(self, group_id: int, events: LinkEvents) -> None:
        if group_id != GROUP or self.events is not None:
            raise ValueError("the simulated network carries one group")
        self.events = events

    def send(self, peer: str, group_id: int, buffers: Sequence[Buffer]) -> None:  # noqa: ARG002 - one group
        connection = self.current.get(peer)
        if connection is not None:
            self._network.transmit(connection, self.name, b"".join(buffers))

    def connected(self, peer: str) -> bool:
        return peer in self.current

    def peer_id(self, peer: str) -> bytes:
        return self.current[peer].terms[peer].member

    def peer_process(self, peer: str) -> bytes:
        return self.current[peer].terms[peer].process

    def protocol(self, peer: str) -> int:
        return self.current[peer].protocol

    def congested(self, peer: str) -> bool:
        connection = self.current.get(peer)
        return connection is not None and connection.pipes[self.name].congested


class Network:
    """All connections, and the faults of the network."""

    def __init__(
        self, world: SimulatedWorld, names: Sequence[str], options: NetworkOptions, random: Random
    ) -> None:
        self.options = options
        self._world = world
        self._random = random
        self._places = {address_of(name): Place(name, Host.REFUSING) for name in names}
        """The node that listens, or listened last, at each address."""
        self._links: dict[str, SimulatedLinks] = {}
        self._processes = 0
        self._cuts: dict[tuple[str, str], int] = {}
        self._lag_s: dict[tuple[str, str], float] = {}
        self._refusals: dict[tuple[str, str], int] = {}
        self._connections: list[LinkEpoch] = []

    # Processes

    def attach(
        self,
        name: str,
        runtime: SimulatedRuntime,
        versions: Versions = ANY_VERSIONS,
        *,
        addresses: Sequence[PeerAddress] = (),
        listed: Mapping[str, PeerAddress] = MappingProxyType({}),
        seeds: Sequence[PeerAddress] = (),
        protocol: int = VERSIONS[-1],
    ) -> SimulatedLinks:
        """Let a process of this name listen and dial; return its links.

        `versions` are the versions of the state that its program can run. `protocol` is the newest version of the
        handshake and of frames that it speaks. The process listens at `addresses`, by default at the node's usual
        address. `listed` has the peers' addresses from its file. `seeds` are addresses of nodes of the cluster that it
        joins.
        """
        self._processes += 1
        process = self._processes.to_bytes(PROCESS_BYTES, "big")
        links = self._links[name] = SimulatedLinks(
            self, name, runtime, PeerAdmission(name, versions, process, listed), seeds, protocol
        )
        for address in addresses or (address_of(name),):
            self._places[address] = Place(name, Host.UP)
        return links

    def configured(self, links: SimulatedLinks, non_members: Sequence[str]) -> None:
        """Let a process dial its known members, and the seeds as long as it does not know its cluster.

        Ends its connections with the `non_members`.
        """
        for peer in non_members:
            connection = links.current[peer]
            connection.pipes[peer].frames.clear()
            self._world.after(0.0, partial(self._close_end, connection, links.name))
        for dialled in dict.fromkeys(
            (*links.known.addresses, *links.seeds, *(PeerAddress(*seed) for seed in links.known.seeds(())))
        ):
            if dialled not in links.current:
                self._dial_soon(links, dialled)

    def process_ended(self, name: str, *, power_loss: bool) -> None:
        """End a process: its kernel closes the connections; a host without power sends no bytes."""
        for place in self._places_of(name, Host.UP):
            place.host = Host.SILENT if power_loss else Host.REFUSING
        links = self._links.pop(name)
        for connection in self._connections_of(name):
            if connection.ends[name] is End.CLOSED:
                continue
            self._shut(connection, name)
            peer = _other(connection, name)
            if power_loss:
                self._world.after(self._timeout_s(), partial(self._close_end, connection, peer))
            else:
                self._end_stream(connection, name)
        links.current.clear()

    def host_has_power(self, name: str) -> None:
        for place in self._places_of(name, Host.SILENT):
            place.host = Host.REFUSING

    def linked(self, name: str) -> list[str]:
        """Return the names of the peers that a process is connected with."""
        return list(self._links[name].current)

    def _places_of(self, name: str, host: Host) -> list[Place]:
        return [place for place in self._places.values() if (place.name, place.host) == (name, host)]

    def _end_stream(self, connection: LinkEpoch, source: str) -> None:
        """Send a FIN after the bytes in flight or, just as often, a reset that discards them."""
        pipe = connection.pipes[source]
        if self._random.random() < 0.5:
            pipe.frames.clear()
            pipe.last_arrival_s = 0.0
        self._put(connection, pipe, None)

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Drop everything from `source` to `target` until `heal`; both ends drop their connection after a timeout."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1
        for connection in self._connections_of(source):
            if target in connection.ends:
                for end in (source, target):
                    self._world.after(self._timeout_s(), partial(self._time_out, connection, end))

    def hold(self, source: str, target: str) -> None:
        """Hold back everything from `source` to `target` until `heal`, as a proxy that hangs; connections stay open."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        self._cuts[source, target] -= 1
        for connection in self._connections_of(source):
            if target in connection.ends:
                self._move(connection, connection.pipes[source])

    def reset(self, source: str, target: str) -> None:
        """Break the connections between two nodes; bytes in flight are lost."""
        for connection in self._connections_of(source):
            if target in connection.ends:
                self._break(connection)

    def lag(self, source: str, target: str, extra_s: float) -> None:
        """Add `extra_s` to all delays in this direction from now on."""
        self._lag_s[source, target] = extra_s

    def refuse(self, source: str, target: str) -> None:
        """Let a proxy refuse connections that `source` dials to `target`, even if it runs, until `admit`."""
        self._refusals[source, target] = self._refusals.get((source, target), 0) + 1

    def admit(self, source: str, target: str) -> None:
        self._refusals[source, target] -= 1

    def reachable(self, source: str, target: str) -> bool:
        """Return whether bytes pass in both directions."""
        return not self._blocked(source, target) and not self._blocked(target, source)

    def _time_out(self, connection: LinkEpoch, end: str) -> None:
        if self._is_cut(connection):
            self._close_end(connection, end)

    def _break(self, connection: LinkEpoch) -> None:
        connection.broken = True
        for pipe in connection.pipes.values():
            pipe.frames.clear()
        for end in connection.ends:
            self._world.after(self._delay_s(), partial(self._close_end, connection, end))

    # Bytes

    def transmit(self, connection: LinkEpoch, source: str, frame: bytes) -> None:
        pipe = connection.pipes[source]
        if connection.broken:
            return
        if connection.ends[pipe.target] is End.CLOSED:
            if not self._blocked(source, pipe.target):
                # The peer's kernel answers with a reset.
                self._world.after(self._delay_s(), partial(self._close_end, connection, source))
            return
        limits = self.options.limits
        if len(frame) > limits.frame_bytes_max:
            # The real links would end the epoch again and again: here it is an error of the turn.
            raise FrameTooLargeError(
                f"a frame of {len(frame)} bytes is above the limit of {limits.frame_bytes_max}"
            )
        if not pipe.backlog.admits(len(frame), pipe.queued_bytes if pipe.congested else 0):
            self._break(connection)
            return
        pipe.queued_bytes += len(frame)
        if pipe.queued_bytes > limits.high_water_bytes:
            pipe.congested = True
        self._put_parts(connection, pipe, len(frame))
        self._put(connection, pipe, frame)

    def _put_parts(self, connection: LinkEpoch, pipe: Pipe, size: int) -> None:
        """Deliver `PART`s to the receiver while a large frame is in transfer; the frame itself comes last."""
        duration_s = size / self.options.bytes_per_s
        begin_s = max(pipe.last_arrival_s, self._world.now_s + self._behind_s(pipe.source))
        parts = int(duration_s / PART_S)
        for number in range(1, parts + 1):
            pipe.frames.append((begin_s + number * PART_S, PART))
        pipe.last_arrival_s = begin_s + duration_s
        if parts:
            self._move(connection, pipe)

    def _put(self, connection: LinkEpoch, pipe: Pipe, frame: bytes | None) -> None:
        delay_s = self._delay_s() + self._lag_s.get((pipe.source, pipe.target), 0.0)
        delay_s += self._behind_s(pipe.source)
        pipe.last_arrival_s = max(pipe.last_arrival_s, self._world.now_s + delay_s)
        pipe.frames.append((pipe.last_arrival_s, frame))
        self._move(connection, pipe)

    def _behind_s(self, name: str) -> float:
        """Return the seconds until a stalled process reaches its present action; 0 if it has ended."""
        links = self._links.get(name)
        return 0.0 if links is None else links.runtime.behind_s

    def _move(self, connection: LinkEpoch, pipe: Pipe) -> None:
        if pipe.moving or not pipe.frames:
            return
        pipe.moving = True
        time_s = max(pipe.frames[0][0], self._world.now_s)
        self._world.at(time_s, partial(self._arrive, connection, pipe))

    def _arrive(self, connection: LinkEpoch, pipe: Pipe) -> None:
        pipe.moving = False
        end = connection.ends[pipe.target]
        if end is End.CLOSED or not pipe.frames:
            return
        if end is End.OPENING or self._blocked(pipe.source, pipe.target):
            return  # `heal` or `_opened` resumes the pipe
        arrival_s, frame = pipe.frames[0]
        if arrival_s <= self._world.now_s:
            pipe.frames.popleft()
            if frame is None:
                self._close_end(connection, pipe.target)
                return
            self._links[pipe.target].runtime.enter(partial(self._receive, connection, pipe, frame))
        self._move(connection, pipe)

    def _receive(self, connection: LinkEpoch, pipe: Pipe, frame: bytes) -> None:
        links = self._links[pipe.target]
        if links.current.get(pipe.source) is not connection:
            return
        connection.received_s[links.name] = self._world.now_s
        if frame == PART:
            if links.events is not None:
                links.events.part_received(pipe.source)
            return
        pipe.queued_bytes -= len(frame)
        if pipe.congested and pipe.queued_bytes <= self.options.limits.low_water_bytes:
            pipe.congested = False
            self._world.after(0.0, partial(self._notify_drained, connection, pipe))
        self._world.trace(frame)
        if links.events is not None:
            links.frame_received(pipe.source, frame)
            links.events.frame_received(pipe.source, frame)

    def _notify_drained(self, connection: LinkEpoch, pipe: Pipe) -> None:
        links = self._links.get(pipe.source)
        if links is not None:
            links.runtime.enter(partial(_report_drained, links, connection, pipe.target))

    # Connections

    def _dial_soon(self, links: SimulatedLinks, dialled: str | PeerAddress, *, again: bool = False) -> None:
        """Let a process dial a peer, or the node at the address of a seed."""
        delay_s = self.options.redial_s * (0.2 + 1.6 * self._random.random())
        if isinstance(dialled, str) and not again:
            delay_s += links.known.patience_s(dialled)
        self._dial_in(links, dialled, delay_s)

    def _dial_in(self, links: SimulatedLinks, dialled: str | PeerAddress, delay_s: float) -> None:
        if dialled not in links.dialling:
            links.dialling.add(dialled)
            self._world.after(delay_s, partial(self._dial, links, dialled))

    def _dial(self, links: SimulatedLinks, dialled: str | PeerAddress) -> None:
        links.dialling.discard(dialled)
        if not self._is_wanted(links, dialled):
            return
        place = self._reached(links, dialled)
        is_named = isinstance(dialled, str)
        if is_named:
            self._record_answer(links, dialled, place)
        acceptor = None
        if place is not None and place.host is Host.UP and not self._refuses(links, place):
            acceptor = self._links[place.name]
        if (
            acceptor is not None
            and (
                acceptor.name == dialled
                if is_named
                # The oldest protocol requires a dialler to know its peer's name.
                else acceptor.speaks > VERSIONS[0] and acceptor.name not in {links.name, *links.current}
            )
            and not acceptor.runtime.paused
            and not links.runtime.paused
            and self._agree(links, acceptor)
        ):
            self._connect(links, acceptor, dialled)
        else:
            self._dial_soon(links, dialled, again=True)

    def _is_wanted(self, links: SimulatedLinks, dialled: str | PeerAddress) -> bool:
        """Return whether the process still runs and lacks a connection that it wants."""
        is_alive = self._links.get(links.name) is links
        return is_alive and dialled not in links.current and len(links.places(dialled)) > 0

    def _reached(self, links: SimulatedLinks, dialled: str | PeerAddress) -> Place | None:
        """Return the place that a dial reaches, or None if no host answers."""
        addresses = links.places(dialled)
        address = addresses[0] if len(addresses) == 1 else self._random.choice(addresses)
        place = self._places.get(address)
        return place if place is not None and self.reachable(links.name, place.name) else None

    def _agree(self, dialler: SimulatedLinks, acceptor: SimulatedLinks) -> bool:
        """Return whether the terms of both sides fit.

        The messages of the handshake are not simulated, its decision is.
        """
        protocol = min(dialler.speaks, acceptor.speaks)
        return all(
            not (one.known.terms.is_named and protocol == VERSIONS[0])
            and disagreement(one.known.terms, other.name, terms_in(protocol, other.known.terms)) is None
            for one, other in ((acceptor, dialler), (dialler, acceptor))
        )

    def _still_agree(self, links: SimulatedLinks, peer: str, terms: Terms) -> bool:
        """Return whether the peer's terms fit this process's present terms."""
        return disagreement(links.known.terms, peer, terms) is None

    def _connect(self, dialler: SimulatedLinks, acceptor: SimulatedLinks, dialled: str | PeerAddress) -> None:
        connection = LinkEpoch(dialler.name, acceptor.name, self.options.limits, self._world.now_s)
        connection.protocol = min(dialler.speaks, acceptor.speaks)
        connection.terms = {
            links.name: terms_in(connection.protocol, links.known.terms) for links in (dialler, acceptor)
        }
        self._connections.append(connection)
        dialler.dialling.add(dialled)
        self._world.after(
            self._delay_s(), partial(self._open_acceptor, connection, dialler, acceptor, dialled)
        )

    def _open_acceptor(
        self,
        connection: LinkEpoch,
        dialler: SimulatedLinks,
        acceptor: SimulatedLinks,
        dialled: str | PeerAddress,
    ) -> None:
        acceptor.runtime.enter(partial(self._opened, connection, acceptor))
        self._world.after(self._delay_s(), partial(self._open_dialler, connection, dialler, dialled))

    def _open_dialler(
        self, connection: LinkEpoch, dialler: SimulatedLinks, dialled: str | PeerAddress
    ) -> None:
        dialler.dialling.discard(dialled)
        if connection.welcomed and not self._is_cut(connection) and not dialler.runtime.paused:
            dialler.runtime.enter(partial(self._opened, connection, dialler))
        if connection.ends[connection.dialler] is not End.OPEN:
            self._shut(connection, connection.dialler)
            self._world.after(self._timeout_s(), partial(self._close_end, connection, connection.acceptor))
        if dialled not in dialler.current:
            self._dial_soon(dialler, dialled, again=True)

    def _opened(self, connection: LinkEpoch, links: SimulatedLinks) -> None:
        """Open an authenticated end: a new epoch begins in the process and replaces an older epoch."""
        if connection.ends[links.name] is not End.OPENING or self._links.get(links.name) is not links:
            return
        peer = _other(connection, links.name)
        dialled_here = links.name == connection.dialler
        terms, link = connection.terms[peer], self._link_of(links, peer)
        links.known.learn_cluster(terms)
        is_welcome = links.known.why_rejected(peer, terms, link, dialled_here=dialled_here) is None
        if not (is_welcome and self._still_agree(links, peer, terms)):
            self._shut(connection, links.name)
            if connection.ends[peer] is End.OPEN:
                self._end_stream(connection, links.name)
            return
        old = links.current.get(peer)
        if old is not None:
            self._lose(old, links)
        connection.ends[links.name] = End.OPEN
        connection.welcomed = True
        connection.received_s[links.name] = self._world.now_s
        links.current[peer] = connection
        links.refused_since_s.pop(peer, None)
        self._world.trace(b"connected %s %s" % (links.name.encode(), peer.encode()))
        if links.events is not None:
            links.events.peer_connected(peer)
        self._move(connection, connection.pipes[peer])

    def _link_of(self, links: SimulatedLinks, peer: str) -> Link | None:
        connection = links.current.get(peer)
        if connection is None:
            return None
        silent_s = self._world.now_s - connection.received_s[links.name]
        terms = connection.terms[peer]
        return Link(terms.process, terms.member, silent_s)

    def _close_end(self, connection: LinkEpoch, name: str) -> None:
        """Let an end learn that the connection is over."""
        links = self._links.get(name)
        if connection.ends[name] is End.CLOSED:
            return
        if links is None or connection.ends[name] is End.OPENING:
            self._shut(connection, name)
            return
        links.runtime.enter(partial(self._lose, connection, links))

    def _lose(self, connection: LinkEpoch, links: SimulatedLinks) -> None:
        if connection.ends[links.name] is End.CLOSED or self._links.get(links.name) is not links:
            return
        self._shut(connection, links.name)
        peer = _other(connection, links.name)
        del links.current[peer]
        self._world.trace(b"lost %s %s" % (links.name.encode(), peer.encode()))
        if connection.ends[peer] is not End.CLOSED:
            self._end_stream(connection, links.name)
        if links.events is not None:
            links.events.peer_lost(peer, dead=False)
        if peer in links.known.addresses:
            self._probe(links, peer, PROBES)
            is_brief = self._world.now_s - connection.made_s < BRIEF_S
            times = links.brief[peer] = links.brief.get(peer, 0) + 1 if is_brief else 0
            self._dial_in(links, peer, redial_s(times, links.known.patience_s(peer)))

    def _shut(self, connection: LinkEpoch, name: str) -> None:
        connection.ends[name] = End.CLOSED
        if connection.ends[_other(connection, name)] is End.CLOSED and connection in self._connections:
            self._connections.remove(connection)

    def _probe(self, links: SimulatedLinks, peer: str, attempts: int) -> None:
        """Probe whether a lost peer is dead: its host must refuse connections again and again."""

        def attempt() -> None:
            if not self._is_wanted(links, peer):
                return
            is_dead = self._record_answer(links, peer, self._reached(links, peer))
            if attempts and not is_dead:
                self._probe(links, peer, attempts - 1)

        self._world.after(self._delay_s() * 2, attempt)

    def _record_answer(self, links: SimulatedLinks, peer: str, place: Place | None) -> bool:
        """Record the answer to an attempt to connect. Return whether the peer now counts as dead."""
        is_refused = place is not None and self._refuses(links, place)
        if not is_refused and place is not None and place.host is Host.UP:
            links.refused_since_s.pop(peer, None)
        if not is_refused and peer not in links.refused_since_s:
            return False
        now_s = self._world.now_s
        is_dead = now_s - links.refused_since_s.setdefault(peer, now_s) >= REFUSES_FOR_S
        if is_dead:
            self._report_dead(links, peer)
        return is_dead

    def _refuses(self, links: SimulatedLinks, place: Place) -> bool:
        """Return whether the host, or a proxy before it, refuses the connection."""
        return place.host is Host.REFUSING or self._refusals.get((links.name, place.name), 0) > 0

    def _report_dead(self, links: SimulatedLinks, peer: str) -> None:
        def report() -> None:
            if peer not in links.current and links.events is not None:
                links.events.peer_lost(peer, dead=True)

        links.runtime.enter(report)

    # Helpers

    def _connections_of(self, name: str) -> list[LinkEpoch]:
        return [connection for connection in self._connections if name in connection.ends]

    def _blocked(self, source: str, target: str) -> bool:
        return self._cuts.get((source, target), 0) > 0

    def _is_cut(self, connection: LinkEpoch) -> bool:
        return not self.reachable(connection.dialler, connection.acceptor)

    def _delay_s(self) -> float:
        options, random = self.options, self._random
        if options.spike_probability and random.random() < options.spike_probability:
            return options.spike_max_s * random.random()
        return options.delay_min_s + (options.delay_max_s - options.delay_min_s) * random.random()

    def _timeout_s(self) -> float:
        return self._random.uniform(self.options.timeout_min_s, self.options.timeout_max_s)


def terms_in(protocol: int, terms: Terms) -> Terms:
    """Return the terms as they arrive in this version of the handshake."""
    return Terms.unpacked(terms.packed(protocol), protocol)


def _other(connection: LinkEpoch, name: str) -> str:
    return connection.acceptor if name == connection.dialler else connection.dialler


def _report_drained(links: SimulatedLinks, connection: LinkEpoch, peer: str) -> None:
    if links.current.get(peer) is connection and links.events is not None:
        links.events.peer_drained(peer)
