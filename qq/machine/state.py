"""The machine's whole state at one moment, and as bytes.

Lives here: `Frozen`, which the machine makes on the loop and others read on any thread; the format of a dump. Not here:
how a machine is put together again (machine.py), how backlogs are packed (runs.py).

Law: to freeze is to copy references, never messages. What a frozen state refers to never changes; of queues and
consumers only what was declared is read. A dump packs little at a time, so that the interpreter can go back to the loop
between any two rows.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.codec import make_packer, unpack
from qq.machine.effects import (
    Committed,
    Connected,
    ConsumerCancelled,
    Consuming,
    Done,
    Failed,
    GetEmpty,
    GetOk,
    Limited,
    QueueDeclared,
    QueueDeleted,
    QueuePurged,
    Recovered,
    Reply,
    Result,
)
from qq.machine.history import History
from qq.machine.policies import Policy
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, FrozenPieces, Piece, Range

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from qq.machine.access import Permissions, TopicPermissions, User
    from qq.machine.backlog import BacklogRow
    from qq.machine.commands import Table
    from qq.machine.policies import Applied, Policies
    from qq.machine.publishers import FrozenPublishers
    from qq.machine.queue import Consumer, FrozenBehind, FrozenQueue, Queue
    from qq.machine.vhost import Exchange
    from qq.routing.routers import Binding

VERSION = 7
"""Of the state and of what commands do to it. Bump it with every change of either: replicas must not disagree."""

Answer = Reply | Failed


VhostRef = tuple[str, bool]
"""A virtual host as others refer to it: its name, and whether it is deleted; there may be a new one of that name."""


class VhostRow(NamedTuple):
    """A virtual host and what is in it, but for its queues."""

    name: str
    description: str
    tags: list[str]
    default_queue_type: str
    limits: Table
    policies: list[Policy]
    exchanges: list[Exchange]
    bindings: list[Binding]
    exchange_policies: list[tuple[str, Applied]]
    unreviewed_queues: list[str]
    unreviewed_exchanges: list[str]
    publishers: FrozenPublishers


class ConnectionRow(NamedTuple):
    node: str
    id: int
    vhost: VhostRef
    user: str
    closing: str


class SessionRow(NamedTuple):
    key: tuple[str, int]
    vhost: VhostRef
    user: str | None
    last_declared: str
    limit: int
    requester: tuple[int, str] | None
    """Id and name of its consumer of direct replies."""
    answers: int
    answer: Answer | None


class ConsumerRow(NamedTuple):
    consumer: Consumer
    credit: int
    prefetch: int
    live: bool
    next_id: int
    marks: list[tuple[int, int]]
    unacked: FrozenPieces[Range]


_FAILED = 0
_RESULTS: tuple[type[Result], ...] = (
    QueueDeclared,
    QueueDeleted,
    QueuePurged,
    Done,
    Consuming,
    ConsumerCancelled,
    GetOk,
    GetEmpty,
    Recovered,
    Committed,
    Limited,
    Connected,
)
"""In a dump they are numbered from 1, `Failed` is 0. New ones go to the end."""


class MalformedDump(ValueError):
    """The bytes are not a state of this version."""


class Frozen(NamedTuple):
    """The state; everything in the order that it has there, which is a part of it."""

    users: list[User]
    user_limits: list[tuple[str, Table]]
    permissions: list[Permissions]
    topic_permissions: list[TopicPermissions]
    publishers_bounds: tuple[int, int]
    vhosts: list[VhostRow]
    queues_declared: int
    queues: list[FrozenQueue]
    connections: list[ConnectionRow]
    sessions: list[SessionRow]
    consumers: list[ConsumerRow]
    dirty: list[Queue]
    behind: list[FrozenBehind]
    abandoned: list[Queue]
    lost: list[str]

    def dump(self) -> bytes:
        """The state, to be read by `read_dump`."""
        packer = make_packer()

        def write(rows: Collection[Any], row_of: Any = None) -> None:
            packer.pack_array_header(len(rows))
            for row in map(row_of, rows) if row_of else rows:
                packer.pack(row)

        packer.pack_array_header(_SECTIONS)
        packer.pack(VERSION)
        write(self.users)
        write(self.user_limits)
        write(self.permissions)
        write(self.topic_permissions)
        write(self.publishers_bounds)
        known = {vhost.name: set(map(id, vhost.policies)) for vhost in self.vhosts}
        packer.pack_array_header(len(self.vhosts))
        for vhost in self.vhosts:
            *described, policies, exchanges, bindings, exchange_policies, queues, others, publishers = vhost
            packer.pack_array_header(len(vhost))
            for value in described:
                packer.pack(value)
            write(policies)
            write(exchanges)
            write(bindings, _binding_row)
            write(exchange_policies, partial(_exchange_policies_row, known[vhost.name]))
            write(queues)
            write(others)
            write(publishers)
        packer.pack(self.queues_declared)
        packer.pack_array_header(len(self.queues))
        for row in self.queues:
            backlog = row.backlog.dump()
            levels = _LEVELS_TO_A_CHUNK if backlog.chunks > _CHUNKS_AT_ONCE else 0
            _pack_by_parts(packer, _queue_row(row, backlog, known[row.queue.vhost]), levels)
        packer.pack_array_header(len(self.queues))
        for row in self.queues:
            write(row.dying)
        write(self.connections)
        write(self.sessions, _session_row)
        write(self.consumers, _consumer_row)
        packer.pack_array_header(len(self.consumers))
        for row in self.consumers:
            write(_pieces(row.unacked), _held_row)
        write([queue.number for queue in self.dirty])
        packer.pack_array_header(len(self.behind))
        for number, came_back, leaving in self.behind:
            packer.pack_array_header(3)
            packer.pack(number)
            packer.pack(came_back)
            packer.pack_array_header(len(leaving))
            for fate, held in leaving:
                packer.pack_array_header(2)
                packer.pack(fate)
                packer.pack_array_header(len(held))
                for unacked in held:
                    write(_pieces(unacked), _held_row)
        write([queue.number for queue in self.abandoned])
        write(self.lost)
        return packer.bytes()

    def counts(self, bounds: Sequence[int]) -> list[int]:
        """How many references to messages there are with bounds[i] <= index < bounds[i + 1], for each i."""
        counts = [0] * max(len(bounds) - 1, 0)
        if not counts:
            return counts
        for row in self.queues:
            row.backlog.add_counts(bounds, counts)
        for index, _, count in self._single_ranges():
            cell = bisect_right(bounds, index) - 1
            if 0 <= cell < len(counts):
                counts[cell] += count
        return counts

    def live(self, first: int, end: int) -> dict[int, dict[int, list[tuple[int, int]]]]:
        """The live messages of the entries from `first` to before `end`.

        By index and ordinal of the batch: ordinal of the first message and count, in order and without overlap.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for index, slot, count in self._single_ranges():
            if first <= index < end:
                found.setdefault(index, []).append((slot, count))
        for row in self.queues:
            for index, slot, count in row.backlog.ranges(first, end):
                found.setdefault(index, []).append((slot, count))
        return {index: _merged(found[index]) for index in sorted(found)}

    def _single_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Index, slot and count of all that is referred to outside the backlogs."""
        for row in self.queues:
            for dead in row.dying:
                yield dead.range[:3]
        leaving = [held for row in self.behind for each in row.leaving for held in each.held]
        for unacked in (*(row.unacked for row in self.consumers), *leaving):
            for piece in _pieces(unacked):
                index, slot, *_ = piece.value
                yield index, slot + piece.offset, piece.count
        for *_, answer in self.sessions:
            # The client may not have it yet, whatever became of it since.
            if type(answer) is Reply and type(answer.result) is GetOk:
                yield answer.result.range[:3]


class Dump(NamedTuple):
    """The rows of a dump."""

    users: list[list[Any]]
    user_limits: list[list[Any]]
    permissions: list[list[Any]]
    topic_permissions: list[list[Any]]
    publishers_bounds: list[int]
    vhosts: list[list[Any]]
    queues_declared: int
    queues: list[list[Any]]
    dying: list[list[list[Any]]]
    """One list for each queue."""
    connections: list[list[Any]]
    sessions: list[list[Any]]
    consumers: list[list[Any]]
    unacked: list[list[tuple[int, list[int]]]]
    """One list for each consumer: the first message id, and the messages."""
    dirty: list[int]
    """Numbers of queues."""
    behind: list[list[Any]]
    abandoned: list[int]
    lost: list[str]
    """Nodes."""


_SECTIONS = 1 + len(Dump._fields)
_LEVELS_TO_A_CHUNK = 6
"""Lists around each chunk of runs: chunks, runs, lane, lanes, backlog, queue."""
_CHUNKS_AT_ONCE = 64


def read_dump(data: bytes) -> Dump:
    """Raises MalformedDump."""
    try:
        state = unpack(data)
    except ValueError as error:
        raise MalformedDump(f"not a state: {error}") from error
    if type(state) is not list or not state or state[0] != VERSION or len(state) != _SECTIONS:
        raise MalformedDump(f"not a state of version {VERSION}")
    return Dump(*state[1:])


def answer_of(node: str, session: int, row: Sequence[Any] | None) -> Answer | None:
    """What `_answer_row` made a row of."""
    if row is None:
        return None
    number, kind, *fields = row
    if kind == _FAILED:
        code, text, class_id, method_id = fields
        return Failed(node, session, code, text, class_id, method_id, number)
    result = _RESULTS[kind - 1]._make(fields)
    if type(result) is GetOk:
        history = History.of(result.history) if result.history else None
        result = result._replace(range=Range(*result.range), history=history)
    return Reply(node, session, result, number)


def _answer_row(answer: Answer | None) -> tuple[Any, ...] | None:
    if answer is None:
        return None
    if isinstance(answer, Failed):
        return (answer.number, _FAILED, *answer[2:-1])
    return (answer.number, _RESULTS.index(type(answer.result)) + 1, *answer.result)


def _session_row(row: SessionRow) -> tuple[Any, ...]:
    *known, answer = row
    return *known, _answer_row(answer)


def _pack_by_parts(packer: Any, value: Any, levels: int) -> None:
    """Pack what `packer.pack` would, with a call for each part: nothing else happens in the node while one lasts."""
    if levels and isinstance(value, list | tuple):
        packer.pack_array_header(len(value))
        for part in value:
            _pack_by_parts(packer, part, levels - 1)
    else:
        packer.pack(value)


def _applied_row(known: Collection[int], applied: Applied) -> tuple[Any, ...]:
    """A policy that applies: its name, or all of it if there is another one of that name now, or none."""
    return tuple(policy.name if policy is not None and id(policy) in known else policy for policy in applied)


def applied_of(policies: Policies, row: Sequence[Any]) -> Applied:
    """What `_applied_row` made a row of."""
    policy, operator = (
        policies.get(known, operator=position == 1) if isinstance(known, str) else known and Policy(*known)
        for position, known in enumerate(row)
    )
    return policy, operator


def _exchange_policies_row(known: Collection[int], row: tuple[str, Applied]) -> tuple[Any, ...]:
    name, applied = row
    return name, _applied_row(known, applied)


def _queue_row(row: FrozenQueue, backlog: BacklogRow, known: Collection[int]) -> tuple[Any, ...]:
    queue = row.queue
    active = row.active
    return (
        queue.vhost,
        queue.name,
        queue.kind,
        queue.durable,
        row.owner,
        queue.auto_delete,
        queue.arguments,
        queue.number,
        row.had_consumer,
        row.used_ms,
        _applied_row(known, row.policies),
        backlog,
        row.histories.dump(),
        row.dying_counts,
        [(consumer.node, consumer.id) for consumer in row.turns],
        None if active is None else (active.node, active.id),
    )


def _binding_row(binding: Binding) -> tuple[Any, ...]:
    return binding.source, *binding.destination, *binding[2:]


def _consumer_row(row: ConsumerRow) -> tuple[Any, ...]:
    consumer = row.consumer
    return (
        consumer.node,
        consumer.session,
        consumer.channel,
        consumer.id,
        consumer.queue.number,
        consumer.tag,
        row.credit,
        row.prefetch,
        consumer.no_ack,
        consumer.exclusive,
        consumer.auto_credit,
        consumer.cancel_on_failover,
        consumer.can_be_cancelled,
        consumer.default_timeout_ms,
        consumer.arguments,
        consumer.budget is not None,
        row.live,
        row.next_id,
        row.marks,
    )


def _pieces(unacked: FrozenPieces[Range]) -> list[Piece[Range]]:
    pieces, start, end = unacked
    return pieces[start:end]


def _held_row(piece: Piece[Range]) -> tuple[int, Range]:
    return piece.first, piece.value.part(piece.offset, piece.count)


def _merged(places: Iterable[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Slots and counts of one entry, as ranges of messages of its batches."""
    batches: dict[int, list[tuple[int, int]]] = {}
    for slot, count in sorted(places):
        first = slot & MESSAGE_MASK
        ranges = batches.setdefault(slot >> MESSAGE_BITS, [])
        if ranges and first <= ranges[-1][0] + ranges[-1][1]:
            start, known = ranges[-1]
            ranges[-1] = (start, max(known, first + count - start))
        else:
            ranges.append((first, count))
    return batches
