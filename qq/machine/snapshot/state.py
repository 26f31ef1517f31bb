"""Snapshots of the machine's whole state: frozen in memory, dumped as bytes, and restored.

Invariant: freezing copies references, never messages. A frozen state refers only to immutable objects, and reads only
the declared properties of queues and consumers. A dump packs, reads and frees little at a time, so that the event loop
can run between any two rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.catalog.deduplication import FrozenPublishers
from qq.machine.catalog.permissions import Permissions, TopicPermissions, User
from qq.machine.catalog.sinks import Sink
from qq.machine.handlers.fragments import Fragments, FragmentsRow
from qq.machine.protocol import versions
from qq.machine.protocol.codec import make_packer, unpack_list
from qq.machine.protocol.effects import GetOk, Got, Reply
from qq.machine.protocol.versions import VERSIONS
from qq.machine.queue.live_messages import LiveMessages
from qq.machine.queue.queue import DeadMessages
from qq.machine.snapshot.rows import (
    CHANGES,
    AttemptRow,
    BehindRow,
    CommittedRow,
    ConnectionRow,
    ConsumerRow,
    EndedRow,
    GroupRow,
    HeldRow,
    LeavingRow,
    MoveRow,
    QueueRow,
    Rows,
    SessionRow,
    SinkRow,
    StuckRow,
    VhostRow,
    downgraded,
    more_fields,
    pieces_of,
    read_dead,
    rows_as_of,
    upgraded,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qq.machine.catalog.sinks import FrozenSink
    from qq.machine.handlers.core import CommittedRuns, Core, FrozenSession
    from qq.machine.handlers.fragments import FrozenFragments, Place, Slots
    from qq.machine.protocol.commands import Table
    from qq.machine.queue.queue import FrozenBehind, FrozenConsumer, FrozenLine, FrozenQueue, Queue


class MalformedDump(ValueError):
    """The bytes are not a state of a version that this program can run."""


class FrozenMachine(NamedTuple):
    """The state at a moment. All lists keep the machine's order, which is part of the state."""

    version: int
    users: list[User]
    user_limits: list[tuple[str, Table]]
    permissions: list[Permissions]
    topic_permissions: list[TopicPermissions]
    publishers_bounds: tuple[int, int]
    vhosts: list[VhostRow]
    queues_declared: int
    queues: list[FrozenQueue]
    connections: list[ConnectionRow]
    sessions: list[FrozenSession]
    consumers: list[FrozenConsumer]
    dirty: list[Queue]
    behind: list[FrozenBehind]
    abandoned: list[Queue]
    lost: list[str]
    global_parameters: list[tuple[str, str]]
    moves: list[MoveRow]
    fragments: FrozenFragments
    outage_ms: int
    sinks: list[FrozenSink]
    committed: list[CommittedRuns]

    def pieces(self) -> list[bytes]:
        """Return the state in the agreed version's format, for `read_dump` of each program that can run that version.

        It is returned in pieces, because copying a large state as a whole would block the node.
        """
        packing = _Packing()
        packing.pack_list(downgraded(Dump, self.version, self._sections()))
        return packing.end()

    def dump(self) -> bytes:
        return b"".join(self.pieces())

    def _sections(self) -> Dump:
        known = {vhost.name: frozenset(map(id, vhost.policies)) for vhost in self.vhosts}
        version = self.version
        return Dump(
            version=version,
            users=rows_as_of(User, version, self.users),
            user_limits=Rows(self.user_limits),
            permissions=rows_as_of(Permissions, version, self.permissions),
            topic_permissions=rows_as_of(TopicPermissions, version, self.topic_permissions),
            publishers_bounds=self.publishers_bounds,
            vhosts=rows_as_of(VhostRow, version, self.vhosts),
            queues_declared=self.queues_declared,
            queues=rows_as_of(
                QueueRow,
                version,
                self.queues,
                lambda queue: QueueRow.from_state(known[queue.queue.vhost], queue),
            ),
            dead=Rows(self.queues, lambda queue: rows_as_of(DeadMessages, version, queue.dead)),
            connections=rows_as_of(ConnectionRow, version, self.connections),
            sessions=rows_as_of(SessionRow, version, self.sessions, SessionRow.from_state),
            consumers=rows_as_of(ConsumerRow, version, self.consumers, ConsumerRow.from_state),
            unacked=Rows(
                self.consumers,
                lambda consumer: rows_as_of(
                    HeldRow, version, pieces_of(consumer.unacked), HeldRow.from_state
                ),
            ),
            dirty=Rows(self.dirty, _number),
            behind=rows_as_of(BehindRow, version, self.behind, BehindRow.from_state),
            abandoned=Rows(self.abandoned, _number),
            lost=Rows(self.lost),
            global_parameters=Rows(self.global_parameters),
            moves=rows_as_of(MoveRow, version, self.moves),
            fragments=Rows(self._fragments_in_use()),
            outage_ms=self.outage_ms,
            stuck=rows_as_of(StuckRow, version, self._stuck(), StuckRow.from_state),
            groups=rows_as_of(
                GroupRow, version, [group for row in self.queues for group in row.groups], GroupRow.from_state
            ),
            ended=rows_as_of(
                EndedRow, version, [row for row in self.queues if row.ended], EndedRow.from_state
            ),
            sinks=rows_as_of(SinkRow, version, self.sinks, SinkRow.from_state),
            committed=rows_as_of(CommittedRow, version, self.committed, CommittedRow.from_state),
        )

    def _stuck(self) -> list[FrozenLine]:
        return [line for row in self.queues for line in row.stuck]

    def counts(self, bounds: Sequence[int]) -> list[int]:
        """Return the number of references to messages with bounds[i] <= index < bounds[i + 1], for each i.

        A fragment of a large message counts as a message.
        """
        counts = [0] * max(len(bounds) - 1, 0)
        if not counts:
            return counts
        for row in self.queues:
            row.backlog.add_counts(bounds, counts)
        for index, _, count in self._single_ranges():
            _count(index, count, bounds, counts)
        for message in self._fragments_in_use():
            for fragment in message.fragments:
                _count(fragment.index, 1, bounds, counts)
        return counts

    def _fragments_in_use(self) -> Sequence[FragmentsRow]:
        """Return the fragments of messages that the state refers to."""
        return self.fragments.needed(self._referred)

    def _referred(self, slots: Slots) -> set[Place]:
        """Return the messages among these that the state refers to."""
        found: set[Place] = set()

        def add(index: int, slot: int, count: int) -> None:
            found.update((index, each) for each in slots[index] if slot <= each < slot + count)

        indexes = sorted(slots)
        bounds = sorted({bound for index in indexes for bound in (index, index + 1)})
        cells = [bisect_left(bounds, index) for index in indexes]
        all_of_them = [bounds[0], bounds[-1]]
        for row in self.queues:
            some = [0]
            row.backlog.add_counts(all_of_them, some)
            if not some[0]:
                continue  # there may be very many queues, and most hold none of these messages
            counts = [0] * (len(bounds) - 1)
            row.backlog.add_counts(bounds, counts)
            wanted = [index for cell, index in zip(cells, indexes, strict=True) if counts[cell]]
            if len(wanted) * _RANGES_PER_SEARCH > row.backlog.totals.count:
                parts = [(wanted[0], wanted[-1] + 1)] if wanted else []
            else:
                parts = [(index, index + 1) for index in wanted]
            for part in parts:
                for messages in row.backlog.ranges(*part):
                    if messages[0] in slots:
                        add(*messages)
        for messages in self._single_ranges():
            if messages[0] in slots:
                add(*messages)
        return found

    def live(self, first: int, end: int) -> LiveMessages:
        """Return the live messages of the entries from `first` to before `end`, in order and without overlap."""
        found = LiveMessages()
        for index, slot, count in self._single_ranges():
            if first <= index < end:
                found.add(index, slot, count)
        for row in self.queues:
            for index, slot, count in row.backlog.ranges(first, end):
                found.add(index, slot, count)
        for message in self._fragments_in_use():
            for fragment in message.fragments:
                if first <= fragment.index < end:
                    found.add(fragment.index, fragment.slot, 1)
        return found

    def _single_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield index, slot and count of all references outside of the backlogs."""
        for row in self.queues:
            for dead in row.dead:
                yield dead.range[:3]
            for line in row.stuck:
                for piece in pieces_of(line.messages):
                    index, slot, *_ = piece.value.range
                    yield index, slot + piece.offset, piece.count
            for chunk in row.leased_chunks():
                for messages in chunk.unpack():
                    yield messages[:3]
        for sink in self.sinks:
            for attempt in sink.attempts:
                for run in attempt.runs:
                    yield run[:3]
        for each in self.committed:
            for run in each.runs:
                yield run[:3]
        leaving = [held for row in self.behind for each in row.leaving for held in each.held]
        for unacked in (*(row.unacked for row in self.consumers), *leaving):
            for piece in pieces_of(unacked):
                index, slot, *_ = piece.value
                yield index, slot + piece.offset, piece.count
        for session in self.sessions:
            for fragment in session.fragments:
                yield fragment.index, fragment.slot, 1
            # The client may not have received the message yet, whatever has happened to it since.
            result = session.answer.result if isinstance(session.answer, Reply) else None
            if isinstance(result, GetOk):
                yield result.range[:3]
            elif isinstance(result, Got):
                for messages in result.ranges:
                    yield messages[:3]


class Dump(NamedTuple):
    """The sections of a dump, in order. In all versions, the version comes first."""

    version: int
    """The agreed version of the state, and the format of the following sections."""
    users: Iterable[User]
    user_limits: Iterable[tuple[str, Table]]
    permissions: Iterable[Permissions]
    topic_permissions: Iterable[TopicPermissions]
    publishers_bounds: tuple[int, int]
    """Maximum publishers that a virtual host remembers, and how long, in ms."""
    vhosts: Iterable[VhostRow]
    queues_declared: int
    queues: Iterable[QueueRow]
    dead: Iterable[Iterable[DeadMessages]]
    """The messages that await dead-lettering, a list for each queue."""
    connections: Iterable[ConnectionRow]
    sessions: Iterable[SessionRow]
    consumers: Iterable[ConsumerRow]
    unacked: Iterable[Iterable[HeldRow]]
    """The messages that consumers hold, a list for each consumer."""
    dirty: Iterable[int]
    """The numbers of queues that are to be served."""
    behind: Iterable[BehindRow]
    abandoned: Iterable[int]
    """The numbers of queues that are still to be removed."""
    lost: Iterable[str]
    """The disconnected nodes whose sessions are still to be ended."""
    global_parameters: Iterable[tuple[str, str]]
    """Names and values, as JSON."""
    moves: Iterable[MoveRow]
    """The moves of all virtual hosts, in the order in which they began."""
    fragments: Iterable[FragmentsRow]
    """The messages stored in fragments that the state refers to."""
    outage_ms: int
    """Milliseconds of the cluster's time that were outage."""
    stuck: Iterable[StuckRow]
    """The dead messages that their targets cannot take."""
    groups: Iterable[GroupRow]
    """The groups of all queues."""
    ended: Iterable[EndedRow]
    """The put-off work of ended leases, for queues that have any."""
    sinks: Iterable[FrozenSink]
    """The sinks of all virtual hosts."""
    committed: Iterable[CommittedRuns]
    """The put-off work of committed epochs."""


CHANGES[Dump] = {
    8: more_fields((), (), ()),
    9: more_fields(0),
    11: more_fields(()),
    12: more_fields((), (), (), ()),
}


_RANGES_PER_SEARCH = 1000
"""Ranges of a backlog (about) that can be read in the time that it takes to find those of a single entry."""
_IN_PARTS = frozenset(
    {
        Rows,
        VhostRow,
        FrozenPublishers,
        BehindRow,
        LeavingRow,
        StuckRow,
        GroupRow,
        EndedRow,
        SinkRow,
        AttemptRow,
        CommittedRow,
    }
)
"""Types that are packed with a call for each of their parts, because a call blocks the node."""
_LEVELS_TO_A_CHUNK = 6
"""Number of lists around each chunk of runs: chunks, runs, lane, lanes, backlog, queue."""
_CHUNKS_AT_ONCE = 64
_PIECE_BYTES = 256 * 1024
"""Octets that are copied at a time, about."""


class _Packing:
    """Packs values in sequence, little at a time."""

    def __init__(self) -> None:
        self._packer = make_packer()
        self._pieces: list[bytes] = []

    def end(self) -> list[bytes]:
        """Return everything that was packed, in pieces."""
        self._cut()
        return self._pieces

    def pack_list(self, values: Sequence[Any]) -> None:
        """Pack a list, with a call for each of its values that may be large."""
        self._packer.pack_array_header(len(values))
        for value in values:
            if type(value) in _IN_PARTS:
                self.pack_list(value)
            elif type(value) is QueueRow and value.backlog.chunks > _CHUNKS_AT_ONCE:
                self._pack_levels(value, _LEVELS_TO_A_CHUNK)
            else:
                self._pack(value)

    def _pack_levels(self, value: Any, levels: int) -> None:
        """Pack like `_pack`, with a call for each part at a depth of `levels` lists."""
        if levels and isinstance(value, list | tuple):
            self._packer.pack_array_header(len(value))
            for part in value:
                self._pack_levels(part, levels - 1)
        else:
            self._pack(value)

    def _pack(self, value: Any) -> None:
        self._packer.pack(value)
        if len(self._packer.getbuffer()) >= _PIECE_BYTES:
            self._cut()

    def _cut(self) -> None:
        self._pieces.append(self._packer.bytes())
        self._packer.reset()


_DEEP = {
    "vhosts": 3,
    "unacked": 2,
    "behind": 6,
    "stuck": 3,
    "groups": 3,
    "ended": 3,
    "sinks": 5,
    "committed": 3,
}
"""Number of lists around the most numerous objects, for sections in which these are not the rows."""
_LEVELS = [_DEEP.get(section, 1) for section in Dump._fields]


def read_dump(data: bytes) -> Dump:
    """Return the sections of a state that was dumped at any version this program can run. Raise MalformedDump.

    The rows are those of the highest version. The messages of consumers can be iterated only once.
    """
    try:
        state = unpack_list(data, _LEVELS)
    except ValueError as error:
        raise MalformedDump(f"not a state: {error}") from error
    if type(state) is not list or not state or type(state[0]) is not int:
        raise MalformedDump("not a state")
    version = state[0]
    if not VERSIONS[0] <= version <= VERSIONS[1]:
        raise MalformedDump(f"a state of version {version}, and this program can run {versions.known()}")
    [sections] = upgraded(Dump, version, [state])
    if len(sections) != len(Dump._fields):
        raise MalformedDump(f"not a state of version {version}: it has {len(sections)} sections")
    read = Dump(*sections)
    return read._replace(
        users=[User(*row) for row in upgraded(User, version, read.users)],
        permissions=[Permissions(*row) for row in upgraded(Permissions, version, read.permissions)],
        topic_permissions=[
            TopicPermissions(*row) for row in upgraded(TopicPermissions, version, read.topic_permissions)
        ],
        vhosts=list(map(VhostRow.read, upgraded(VhostRow, version, read.vhosts))),
        queues=list(map(QueueRow.read, upgraded(QueueRow, version, read.queues))),
        dead=[list(map(read_dead, upgraded(DeadMessages, version, rows))) for rows in read.dead],
        connections=[ConnectionRow(*row) for row in upgraded(ConnectionRow, version, read.connections)],
        sessions=[SessionRow(*row) for row in upgraded(SessionRow, version, read.sessions)],
        consumers=[ConsumerRow(*row) for row in upgraded(ConsumerRow, version, read.consumers)],
        unacked=(
            map(HeldRow.read, upgraded(HeldRow, version, _given_away(rows)))
            for rows in _given_away(read.unacked)
        ),
        behind=list(map(BehindRow.read, upgraded(BehindRow, version, read.behind))),
        moves=[MoveRow(*row) for row in upgraded(MoveRow, version, read.moves)],
        fragments=list(map(FragmentsRow.read, read.fragments)),
        stuck=list(map(StuckRow.read, upgraded(StuckRow, version, read.stuck))),
        groups=list(map(GroupRow.read, upgraded(GroupRow, version, read.groups))),
        ended=list(map(EndedRow.read, upgraded(EndedRow, version, read.ended))),
        sinks=list(map(SinkRow.read, upgraded(SinkRow, version, read.sinks))),
        committed=list(map(CommittedRow.read, upgraded(CommittedRow, version, read.committed))),
    )


def freeze(core: Core) -> FrozenMachine:
    """Return the state as it is now."""
    catalog, access = core.catalog, core.catalog.access
    return FrozenMachine(
        version=core.version,
        users=list(access.users.values()),
        user_limits=list(access.limits.items()),
        permissions=list(access.all_permissions.values()),
        topic_permissions=list(access.all_topic_permissions.values()),
        publishers_bounds=catalog.publishers_bounds,
        vhosts=[VhostRow.from_state(vhost) for vhost in catalog.vhosts.values()],
        queues_declared=catalog.queues_declared,
        queues=[queue.freeze(is_served=queue not in core.dirty) for queue in catalog.queues()],
        connections=[ConnectionRow.from_state(connection) for connection in catalog.connections.values()],
        sessions=[session.freeze(key) for key, session in core.sessions.items()],
        consumers=[consumer.freeze() for consumer in core.consumers.values()],
        dirty=list(core.dirty),
        behind=[queue.freeze_behind() for queue in core.behind],
        abandoned=list(core.abandoned),
        lost=list(core.lost),
        global_parameters=list(catalog.global_parameters.items()),
        moves=list(map(MoveRow.from_state, catalog.moves.all.values())),
        fragments=core.fragments.freeze(),
        outage_ms=core.outage_ms,
        sinks=[sink.freeze() for vhost in catalog.vhosts.values() for sink in vhost.sinks.values()],
        committed=[each._replace(runs=each.runs.copy()) for each in core.committed],
    )


def _given_away(rows: Any) -> Iterator[Any]:
    """Yield the items of a list, and remove them from it."""
    rows.reverse()
    while rows:
        yield rows.pop()


def restore(core: Core, dump: Dump) -> None:
    """Restore a state into a new core; the dump's rows are consumed."""
    core.version, core.outage_ms = dump.version, dump.outage_ms
    core.fragments = Fragments(dump.fragments)
    catalog = core.catalog
    _restore_access(core, dump)
    catalog.limit_publishers(*dump.publishers_bounds)
    catalog.global_parameters = dict(dump.global_parameters)
    for row in dump.moves:
        catalog.moves.begin(row.build())
    for row in dump.vhosts:
        vhost = catalog.put_vhost(row.name)
        row.build(vhost)
        if vhost.is_unreviewed:
            core.reviewing[row.name] = vhost
    queues: dict[int, Queue] = {}
    for row, dead in zip(dump.queues, dump.dead, strict=True):
        vhost = catalog.vhosts[row.vhost]
        queue = queues[row.number] = row.build(vhost.policies, dead)
        vhost.restore_queue(queue)
        if queue.dead:
            core.queues_with_dead[queue] = None
    for row in dump.stuck:
        queues[row.queue].restore_stuck(row.target, row.messages)
        core.stuck_lines.add(queues[row.queue], [row.target])
    for row in dump.groups:
        queues[row.queue].restore_group(row.build(queues[row.queue]))
    for row in dump.ended:
        queues[row.queue].restore_ended(row.chunks)
    for row in dump.sinks:
        catalog.vhosts[row.vhost].sinks[row.name] = Sink.restore(row)
    core.committed.extend(dump.committed)
    catalog.queues_declared = dump.queues_declared
    for row in dump.vhosts:
        for binding in row.bindings:
            catalog.vhosts[row.name].restore_binding(binding.build())
    for row in dump.connections:
        catalog.restore_connection(row.build(catalog.vhost_of(row.vhost)))
    for row in dump.sessions:
        node, number = row.key
        core.restore_session((node, number), row.build(catalog.vhost_of(row.vhost)))
    core.restore_lost(dump.lost)
    _restore_consumers(core, dump, queues)
    core.dirty = {queues[number]: None for number in dump.dirty}
    core.abandoned = {queues[number]: None for number in dump.abandoned}
    for row in dump.behind:
        core.behind[queues[row.queue]] = None
        queues[row.queue].restore_behind(row.came_back, [leaving.build() for leaving in row.leaving])
    core.restore_waiting()
    core.restore_timers()
    for section in dump:
        if isinstance(section, list):
            for _ in _given_away(section):
                pass


def _restore_access(core: Core, dump: Dump) -> None:
    access = core.catalog.access
    for user in dump.users:
        access.put_user(user)
    for user, limits in dump.user_limits:
        access.set_limits(user, limits)
    for permissions in dump.permissions:
        access.set_permissions(permissions)
    for permissions in dump.topic_permissions:
        access.set_topic_permissions(permissions)


def _restore_consumers(core: Core, dump: Dump, queues: dict[int, Queue]) -> None:
    """Add consumers to their queues and their sessions, and put them into the rotations."""
    for row, held in zip(dump.consumers, dump.unacked, strict=True):
        queue = queues[row.queue]
        consumer = row.build(queue, core.session(row.node, row.session).budget, held)
        queue.restore_consumer(consumer)
        core.enter_consumer(consumer)
        core.watch(consumer)
    for row in dump.queues:
        active = None if row.active is None else core.consumers.get(row.active)
        queues[row.number].restore_rotation([core.consumers[key] for key in row.rotation], active)


def _number(queue: Queue) -> int:
    return queue.number


def _count(index: int, count: int, bounds: Sequence[int], counts: list[int]) -> None:
    """Add `count` to the element of `counts` for this index, if any."""
    cell = bisect_right(bounds, index) - 1
    if 0 <= cell < len(counts):
        counts[cell] += count
