"""The rows of a dump: the stored form of each object, and how the object is built from it.

Some values are stored as they are, so that their fields are part of the format, too: `User`, `Permissions` and
`TopicPermissions` (permissions.py), `Policy`, `Exchange` (vhost.py), `KnownPublisher` and `FrozenPublishers`,
`DeadMessages` (queue.py), `Lease` and its parts (leases.py), `History` and `Death`, `Range`, and the results of
effects.py.

A dump is written in the format of the agreed version of the state, so that programs of the previous release can read
it, too. If you change a kind of row, record the change below its class: `CHANGES[QueueRow] = {9: Change(...)}`.

Invariant: the bytes of a dump follow from these classes and `CHANGES`, and all replicas must write the same. A new
field must be added at the end of its class, in `from_state` and in `build`, and recorded in `CHANGES`. A row inside of
a different row is part of that row, and so is its change.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qq.machine.catalog.catalog import ConnectionState
from qq.machine.catalog.reply_names import Requester
from qq.machine.catalog.sinks import FrozenAttempt, FrozenSink, StagedRun
from qq.machine.catalog.vhost import Exchange
from qq.machine.handlers.core import CommittedRuns, SessionState
from qq.machine.handlers.fragments import Fragment
from qq.machine.policy.policies import Policy
from qq.machine.policy.settings import consumer_settings_of, settings_of
from qq.machine.protocol.death_history import History
from qq.machine.protocol.effects import (
    Attached,
    AttachRefused,
    Committed,
    Connected,
    ConsumerCancelled,
    Consuming,
    Done,
    Failed,
    GetEmpty,
    GetOk,
    Got,
    Limited,
    QueueDeclared,
    QueueDeleted,
    QueuePurged,
    Recovered,
    Reply,
)
from qq.machine.queue.consumers import Budget, ClientCredit
from qq.machine.queue.leases import EndedChunk, GroupSettings, Lease, LeaseChunk, the_group
from qq.machine.queue.leaving import UNMODIFIED, Leaving, Modification
from qq.machine.queue.moves import MoveState
from qq.machine.queue.queue import Consumer, DeadMessages, LeaseGroup, Queue
from qq.ranges import Range, RangeMap
from qq.routing.routers import Binding, Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from qq.machine.catalog.deduplication import FrozenPublishers
    from qq.machine.catalog.vhost import VhostRef, VirtualHost
    from qq.machine.handlers.core import FrozenSession
    from qq.machine.policy.policies import Applied, Policies
    from qq.machine.protocol.commands import Table
    from qq.machine.protocol.death_history import HistoriesRow
    from qq.machine.protocol.effects import Answer, Result
    from qq.machine.queue.backlog import BacklogRow
    from qq.machine.queue.leases import FrozenGroup
    from qq.machine.queue.leaving import FrozenLeaving
    from qq.machine.queue.queue import FrozenBehind, FrozenConsumer, FrozenLine, FrozenQueue
    from qq.ranges import FrozenPieces, Piece


V = TypeVar("V")

_make = tuple.__new__
"""Makes a row in half the time of calling the class; used where there may be very many rows."""


class Rows:
    """Rows that are built and packed one by one, however many they are."""

    __slots__ = ("_row_of", "_things")

    def __init__(self, things: Collection[Any], row_of: Callable[[Any], object] | None = None) -> None:
        """`row_of` builds the row of an object. Without it, objects are their own rows."""
        self._things = things
        self._row_of = row_of

    def __len__(self) -> int:
        return len(self._things)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._things) if self._row_of is None else map(self._row_of, self._things)


# Versions


class Change(NamedTuple):
    """A change of a kind of row in a version of the state."""

    upgrade: Callable[[Sequence[Any]], Sequence[Any]]
    """Converts a row of the previous version into a row of this version."""
    downgrade: Callable[[Any], Sequence[Any]]
    """Converts a row of this version into a row of the previous version."""


def more_fields(*defaults: Any) -> Change:
    """Return a change that adds fields at the end of a row; `defaults` are their values before its version."""

    def upgrade(written: Sequence[Any]) -> Sequence[Any]:
        return [*written, *defaults]

    def downgrade(row: Any) -> Sequence[Any]:
        return row[: -len(defaults)]

    return Change(upgrade, downgrade)


CHANGES: dict[type[Any], dict[int, Change]] = {}
"""Kind of row -> version -> change, ascending, since the lowest version that this program can run."""


def upgraded(kind: type[Any], version: int, written: Iterable[Sequence[Any]]) -> Iterable[Sequence[Any]]:
    """Return rows of this version, converted to the highest version."""
    for since, change in CHANGES.get(kind, {}).items():
        if since > version:
            written = map(change.upgrade, written)
    return written


def downgraded(kind: type[Any], version: int, row: Any) -> Any:
    """Return a row of the highest version, converted to this version."""
    for since, change in reversed(CHANGES.get(kind, {}).items()):
        if since > version:
            row = _make(kind, change.downgrade(row))
    return row


def rows_as_of(
    kind: type[Any], version: int, things: Collection[Any], row_of: Callable[[Any], object] | None = None
) -> Rows:
    """Return the `Rows` of these objects in the format of this version."""
    if all(since <= version for since in CHANGES.get(kind, ())):
        return Rows(things, row_of)
    return Rows(things, lambda thing: downgraded(kind, version, row_of(thing) if row_of else thing))


# Virtual hosts and their objects


class AppliedRow(NamedTuple):
    """The policies that apply to a queue or an exchange, each by name, or whole if it was replaced since."""

    policy: str | Policy | None
    operator: str | Policy | None

    @classmethod
    def from_state(cls, known: Collection[int], applied: Applied) -> AppliedRow:
        """Return the row of these policies.

        `known` has the `id` of each current policy of the virtual host.
        """
        if applied == (None, None):
            return _NOTHING_APPLIES
        return cls(
            *(policy.name if policy is not None and id(policy) in known else policy for policy in applied)
        )

    def build(self, policies: Policies) -> Applied:
        return _policy(policies, self.policy, operator=False), _policy(policies, self.operator, operator=True)


_NOTHING_APPLIES = AppliedRow(None, None)


def _policy(policies: Policies, known: str | Sequence[Any] | None, *, operator: bool) -> Policy | None:
    if known is None:
        return None
    return policies.get(known, operator=operator) if isinstance(known, str) else Policy(*known)


class ExchangePoliciesRow(NamedTuple):
    exchange: str
    applied: AppliedRow

    @classmethod
    def from_state(cls, known: Collection[int], applied: tuple[str, Applied]) -> ExchangePoliciesRow:
        exchange, policies = applied
        return cls(exchange, AppliedRow.from_state(known, policies))


class BindingRow(NamedTuple):
    source: str
    kind: int
    """The number of the `DestinationKind`."""
    destination: str
    routing_key: str
    arguments: bytes

    @classmethod
    def from_state(cls, binding: Binding) -> BindingRow:
        source, (kind, name), routing_key, arguments = binding
        return _make(cls, (source, kind, name, routing_key, arguments))

    def build(self) -> Binding:
        destination = Destination(DestinationKind(self.kind), self.destination)
        return Binding(self.source, destination, self.routing_key, self.arguments)


class ParameterRow(NamedTuple):
    """A parameter of a virtual host."""

    component: str
    name: str
    value: str

    @classmethod
    def from_state(cls, parameter: tuple[tuple[str, str], str]) -> ParameterRow:
        (component, name), value = parameter
        return cls(component, name, value)


class VhostRow(NamedTuple):
    """A virtual host and its objects, without its queues."""

    name: str
    description: str
    tags: list[str]
    default_queue_type: str
    limits: Table
    policies: Iterable[Policy]
    exchanges: Iterable[Exchange]
    bindings: Iterable[BindingRow]
    exchange_policies: Iterable[ExchangePoliciesRow]
    unreviewed_queues: Iterable[str]
    unreviewed_exchanges: Iterable[str]
    publishers: FrozenPublishers
    is_protected: bool
    parameters: Iterable[ParameterRow]

    @classmethod
    def from_state(cls, vhost: VirtualHost) -> VhostRow:
        policies = vhost.policies.rows()
        return cls(
            vhost.name,
            vhost.description,
            vhost.tags,
            vhost.default_queue_type,
            vhost.limits,
            Rows(policies),
            Rows(list(vhost.exchanges.values())),
            Rows(list(vhost.bindings), BindingRow.from_state),
            Rows(
                list(vhost.exchange_policies.items()),
                partial(ExchangePoliciesRow.from_state, frozenset(map(id, policies))),
            ),
            Rows(vhost.unreviewed_queues.copy()),
            Rows(vhost.unreviewed_exchanges.copy()),
            vhost.publishers.freeze(),
            vhost.is_protected,
            Rows(list(vhost.parameters.items()), ParameterRow.from_state),
        )

    @classmethod
    def read(cls, written: Sequence[Any]) -> VhostRow:
        row = cls(*written)
        return row._replace(
            policies=[Policy(*policy) for policy in row.policies],
            exchanges=[Exchange(*exchange) for exchange in row.exchanges],
            bindings=[BindingRow(*binding) for binding in row.bindings],
            exchange_policies=[
                ExchangePoliciesRow(exchange, AppliedRow(*applied))
                for exchange, applied in row.exchange_policies
            ],
            parameters=[ParameterRow(*parameter) for parameter in row.parameters],
        )

    def build(self, vhost: VirtualHost) -> None:
        """Fill a new virtual host, except for its bindings, which need the queues first."""
        vhost.describe(self.description, self.tags, self.default_queue_type)
        vhost.set_limits(self.limits)
        for policy in self.policies:
            vhost.restore_policy(policy)
        for exchange in self.exchanges:
            if exchange.name not in vhost.exchanges:
                vhost.restore_exchange(exchange)
        for name, applied in self.exchange_policies:
            vhost.restore_exchange_policies(name, applied.build(vhost.policies))
        vhost.restore_unreviewed(self.unreviewed_queues, self.unreviewed_exchanges)
        vhost.publishers.load(self.publishers)
        vhost.is_protected = self.is_protected
        vhost.parameters = {(component, name): value for component, name, value in self.parameters}


_EXCHANGES = VhostRow._fields.index("exchanges")


def _with_users(written: Sequence[Any]) -> Sequence[Any]:
    """Return a virtual host's row whose exchanges have an unknown user."""
    exchanges = [[*exchange, ""] for exchange in written[_EXCHANGES]]
    return [*written[:_EXCHANGES], exchanges, *written[_EXCHANGES + 1 :]]


def _without_users(row: VhostRow) -> Sequence[Any]:
    return row._replace(exchanges=Rows(list(row.exchanges), lambda exchange: exchange[:-1]))


CHANGES[VhostRow] = {8: more_fields(False, ()), 12: Change(_with_users, _without_users)}


# Queues


class DeadCounts(NamedTuple):
    first: int
    """The number of the first message awaiting dead-lettering."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    retry_ms: int


class QueueRow(NamedTuple):
    """A queue, without its dead messages, its consumers' messages and its put-off work."""

    vhost: str
    name: str
    kind: str
    durable: bool
    owner: tuple[str, int] | None
    auto_delete: bool
    arguments: Table
    number: int
    had_consumer: bool
    used_ms: int
    policies: AppliedRow
    backlog: BacklogRow
    histories: HistoriesRow
    dead: DeadCounts
    rotation: list[tuple[str, int]]
    """Node and id of the consumers in the rotation, in order."""
    active: tuple[str, int] | None
    """Node and id of the single active consumer, or None."""

    @classmethod
    def from_state(cls, known: Collection[int], frozen: FrozenQueue) -> QueueRow:
        """Return the row of a queue; `known` as in `AppliedRow.from_state`."""
        queue, active = frozen.queue, frozen.active
        return cls(
            queue.vhost,
            queue.name,
            queue.kind,
            queue.durable,
            frozen.owner,
            queue.auto_delete,
            queue.arguments,
            queue.number,
            frozen.had_consumer,
            frozen.used_ms,
            AppliedRow.from_state(known, frozen.policies),
            frozen.backlog.dump(),
            frozen.histories.dump(),
            DeadCounts(frozen.first_dead, frozen.dead_count, frozen.retry_ms),
            [(consumer.node, consumer.id) for consumer in frozen.rotation],
            None if active is None else (active.node, active.id),
        )

    @classmethod
    def read(cls, written: Sequence[Any]) -> QueueRow:
        row = cls(*written)
        return row._replace(
            owner=tuple(row.owner) if row.owner else None,
            policies=AppliedRow(*row.policies),
            dead=DeadCounts(*row.dead),
            rotation=[(node, number) for node, number in row.rotation],
            active=tuple(row.active) if row.active else None,
        )

    def build(self, policies: Policies, dead: Iterable[DeadMessages]) -> Queue:
        """Build the queue; its consumers are added, and served, later."""
        applied = self.policies.build(policies)
        queue = Queue(
            vhost=self.vhost,
            name=self.name,
            kind=self.kind,
            durable=self.durable,
            owner=self.owner,
            auto_delete=self.auto_delete,
            arguments=self.arguments,
            number=self.number,
            settings=settings_of(self.kind, self.arguments, *applied),
            policies=applied,
            had_consumer=self.had_consumer,
            used_ms=self.used_ms,
            first_dead=self.dead.first,
            dead_count=self.dead.count,
            retry_ms=self.dead.retry_ms,
        )
        queue.restore_messages(self.backlog, self.histories, dead)
        return queue


class StuckRow(NamedTuple):
    """The dead messages of a queue that a target cannot take."""

    queue: int
    """The number of the queue."""
    target: str
    messages: Iterable[StuckMessagesRow]

    @classmethod
    def from_state(cls, frozen: FrozenLine) -> StuckRow:
        pieces = pieces_of(frozen.messages)
        return cls(frozen.queue, frozen.target, Rows(pieces, StuckMessagesRow.from_state))

    @classmethod
    def read(cls, written: Sequence[Any]) -> StuckRow:
        queue, target, messages = written
        return cls(queue, target, list(map(StuckMessagesRow.read, messages)))


class StuckMessagesRow(NamedTuple):
    """Consecutive dead messages that a target cannot take."""

    first: int
    """The number of the first of them."""
    dead: DeadMessages

    @classmethod
    def from_state(cls, piece: Piece[DeadMessages]) -> StuckMessagesRow:
        return cls(piece.first, piece.value.part(piece.offset, piece.count))

    @classmethod
    def read(cls, written: Sequence[Any]) -> StuckMessagesRow:
        first, dead = written
        return cls(first, read_dead(dead))


def read_dead(written: Sequence[Any]) -> DeadMessages:
    messages, reason, time_ms = written
    return DeadMessages(Range(*messages), reason, time_ms)


# Groups


class GroupRow(NamedTuple):
    """A group of a queue, with its open leases."""

    queue: int
    """The number of the queue."""
    name: str
    fence: int
    owner: str
    user: str
    settings: GroupSettings
    generation: int
    used_ms: int
    first_free: int
    last: int
    leases: Iterable[Lease]

    @classmethod
    def from_state(cls, frozen: FrozenGroup) -> GroupRow:
        return cls(*frozen._replace(leases=Rows(frozen.leases)))

    @classmethod
    def read(cls, written: Sequence[Any]) -> GroupRow:
        row = cls(*written)
        return row._replace(settings=GroupSettings(*row.settings), leases=list(map(_read_lease, row.leases)))

    def build(self, queue: Queue) -> LeaseGroup:
        leases = {lease.number: lease for lease in self.leases}
        return LeaseGroup(
            queue=queue,
            name=self.name,
            label=the_group(self.name, queue.name, queue.vhost),
            fence=self.fence,
            owner=self.owner,
            user=self.user,
            settings=self.settings,
            generation=self.generation,
            used_ms=self.used_ms,
            first_free=self.first_free,
            last=self.last,
            leases=leases,
            leased=sum(lease.messages for lease in leases.values()),
            leased_size=sum(lease.size for lease in leases.values()),
        )


def _read_lease(written: Sequence[Any]) -> Lease:
    lease = Lease(*written)
    return lease._replace(chunks=tuple(LeaseChunk(*chunk) for chunk in lease.chunks))


class EndedRow(NamedTuple):
    """The messages of leases of a queue that ended, as put-off work."""

    queue: int
    """The number of the queue."""
    chunks: Iterable[EndedChunk]

    @classmethod
    def from_state(cls, frozen: FrozenQueue) -> EndedRow:
        return cls(frozen.queue.number, Rows(frozen.ended))

    @classmethod
    def read(cls, written: Sequence[Any]) -> EndedRow:
        queue, chunks = written
        return cls(queue, [EndedChunk(is_released, LeaseChunk(*chunk)) for is_released, chunk in chunks])


# Sinks


class SinkRow(NamedTuple):
    """A sink, with its attempts that are not committed."""

    vhost: str
    name: str
    user: str
    expires_ms: int
    used_ms: int
    first_free: int
    attempts: Iterable[AttemptRow]

    @classmethod
    def from_state(cls, frozen: FrozenSink) -> SinkRow:
        return cls(*frozen[:-1], attempts=Rows(frozen.attempts, AttemptRow.from_state))

    @classmethod
    def read(cls, written: Sequence[Any]) -> FrozenSink:
        vhost, name, user, expires_ms, used_ms, first_free, attempts = written
        read = list(map(AttemptRow.read, attempts))
        return FrozenSink(vhost, name, user, expires_ms, used_ms, first_free, read)


class AttemptRow(NamedTuple):
    """An attempt of a task at an epoch."""

    name: str
    epoch: int
    used_ms: int
    steps: int
    refusal: tuple[int, str] | None
    runs: Iterable[StagedRun]

    @classmethod
    def from_state(cls, frozen: FrozenAttempt) -> AttemptRow:
        return cls(*frozen[:-1], runs=Rows(frozen.runs))

    @classmethod
    def read(cls, written: Sequence[Any]) -> FrozenAttempt:
        name, epoch, used_ms, steps, refusal, runs = written
        refused = None if refusal is None else (refusal[0], refusal[1])
        return FrozenAttempt(name, epoch, used_ms, steps, refused, list(map(StagedRun.read, runs)))


class CommittedRow(NamedTuple):
    """Messages of a virtual host that a sink has committed, and that still have to enter their queues."""

    vhost: str
    runs: Iterable[StagedRun]

    @classmethod
    def from_state(cls, frozen: CommittedRuns) -> CommittedRow:
        return cls(frozen.vhost, Rows(frozen.runs))

    @classmethod
    def read(cls, written: Sequence[Any]) -> CommittedRuns:
        vhost, runs = written
        return CommittedRuns(vhost, list(map(StagedRun.read, runs)))


# Messages that consumers hold or have held


class HeldRow(NamedTuple):
    """Consecutive messages that a consumer holds."""

    first: int
    """The message id of the first message."""
    messages: Range

    @classmethod
    def from_state(cls, piece: Piece[Range]) -> HeldRow:
        first, count, messages, offset = piece
        return _make(cls, (first, messages.part(offset, count)))

    @classmethod
    def read(cls, written: Sequence[Any]) -> HeldRow:
        first, messages = written
        return _make(cls, (first, Range(*messages)))


def held_rows(held: FrozenPieces[Range]) -> Rows:
    """Return the rows of all messages of a consumer."""
    return Rows(pieces_of(held), HeldRow.from_state)


def pieces_of(held: FrozenPieces[V]) -> list[Piece[V]]:
    pieces, start, end = held
    return pieces[start:end]


def build_held(rows: Iterable[HeldRow]) -> RangeMap[Range]:
    held: RangeMap[Range] = RangeMap()
    for row in rows:
        held.append(row.first, row.messages.count, row.messages)
    return held


class LeavingRow(NamedTuple):
    """Messages that consumers of a queue have released, and their common fate."""

    fate: int
    held: Iterable[Iterable[HeldRow]]
    """The messages of each of the consumers."""
    modification: Modification

    @classmethod
    def from_state(cls, frozen: FrozenLeaving) -> LeavingRow:
        return cls(frozen.fate, Rows(frozen.held, held_rows), frozen.modification)

    @classmethod
    def read(cls, written: Sequence[Any]) -> LeavingRow:
        fate, held, (annotations, ready_ms) = written
        modification = Modification(tuple((key, value) for key, value in annotations), ready_ms)
        return cls(fate, [list(map(HeldRow.read, rows)) for rows in held], modification)

    def build(self) -> Leaving:
        return Leaving(self.fate, list(map(build_held, self.held)), self.modification)


class BehindRow(NamedTuple):
    """The put-off work of a queue."""

    queue: int
    """The queue's number."""
    came_back: int
    leaving: Iterable[LeavingRow]

    @classmethod
    def from_state(cls, frozen: FrozenBehind) -> BehindRow:
        return cls(frozen.queue, frozen.came_back, Rows(frozen.leaving, LeavingRow.from_state))

    @classmethod
    def read(cls, written: Sequence[Any]) -> BehindRow:
        row = cls(*written)
        return row._replace(leaving=list(map(LeavingRow.read, row.leaving)))


def _with_modifications(written: Sequence[Any]) -> Sequence[Any]:
    queue, came_back, leaving = written
    return [queue, came_back, [[*each, UNMODIFIED] for each in leaving]]


def _without_modifications(row: BehindRow) -> Sequence[Any]:
    return row._replace(leaving=Rows([_make(LeavingRow, each[:-1]) for each in row.leaving]))


CHANGES[BehindRow] = {13: Change(_with_modifications, _without_modifications)}


class MoveRow(NamedTuple):
    """A move of messages: the fields of `moves.MoveState`."""

    vhost: str
    id: str
    user: str
    source: str
    source_number: int
    destination: str
    destination_number: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    rate: int
    reason: str
    from_queue: str
    headers: Table
    shovel: str
    is_endless: bool
    begun_ms: int
    ready: int
    returned_end: int
    position_end: int
    step: int
    place: int
    key: int
    examined: int
    moved: int
    waits_for: str
    state: str
    error: str
    ended_ms: int
    text: str

    @classmethod
    def from_state(cls, move: MoveState) -> MoveRow:
        return cls(*(getattr(move, field) for field in cls._fields))

    def build(self) -> MoveState:
        return MoveState(**self._asdict())


CHANGES[MoveRow] = {11: more_fields("")}


# Connections, sessions, consumers


class ConnectionRow(NamedTuple):
    node: str
    id: int
    vhost: VhostRef
    user: str
    closing: str

    @classmethod
    def from_state(cls, connection: ConnectionState) -> ConnectionRow:
        return cls(connection.node, connection.id, connection.vhost.ref, connection.user, connection.closing)

    def build(self, vhost: VirtualHost) -> ConnectionState:
        return ConnectionState(self.node, self.id, vhost, self.user, self.closing)


class SessionRow(NamedTuple):
    key: tuple[str, int]
    """The session's node and number."""
    vhost: VhostRef
    user: str | None
    queue: str
    """The name of the queue that the session declared last, or ""."""
    limit: int
    requester: tuple[int, str] | None
    """Id and name of the session's consumer of direct replies, or None."""
    answers: int
    answer: Sequence[Any] | None
    """The last answer, as `answer_row` returns it."""
    fragments: Sequence[Sequence[int]]
    """The stored parts of the large message that the session will publish, each a `Fragment`."""

    @classmethod
    def from_state(cls, frozen: FrozenSession) -> SessionRow:
        return _make(cls, (*frozen[:-2], answer_row(frozen.answer), frozen.fragments))

    def build(self, vhost: VirtualHost) -> SessionState:
        """Build the session; its consumers are added later."""
        node, number = self.key
        return SessionState(
            vhost,
            user=self.user,
            queue=self.queue,
            requester=Requester(node, number, *self.requester) if self.requester else None,
            budget=Budget(self.limit),
            answers=self.answers,
            answer=build_answer(node, number, self.answer),
            fragments=[Fragment(*fragment) for fragment in self.fragments],
        )


def _with_contract(written: Sequence[Any]) -> Sequence[Any]:
    """Return a session's row with a count contract in place of the flag whether failures are counted apart."""
    return _with_counts(written, lambda is_apart: "4.3" if is_apart else "4.0")


def _without_contract(row: Any) -> Sequence[Any]:
    return _with_counts(row, lambda contract: contract == "4.3")


def _with_counts(row: Sequence[Any], change: Callable[[Any], Any]) -> Sequence[Any]:
    """Return a session's row in which `change` has converted the last value of an answer to basic.get."""
    answer = row[_ANSWER]
    if answer is None or answer[1] not in _GOT_KINDS:
        return row
    *fields, counts = answer
    return [*row[:_ANSWER], [*fields, change(counts)], *row[_ANSWER + 1 :]]


_ANSWER = SessionRow._fields.index("answer")

CHANGES[SessionRow] = {8: more_fields(()), 9: Change(_with_contract, _without_contract)}


class FailedRow(NamedTuple):
    number: int
    kind: int
    """Always `_FAILED`, a value that no reply has in this place."""
    code: int
    text: str
    opcode: int


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
    Got,
    Attached,
    AttachRefused,
)
"""All kinds of results. In a dump they are numbered from 1; 0 is `Failed`. New kinds must go to the end."""
_GOT_KINDS = [_RESULTS.index(kind) + 1 for kind in (GetOk, Got)]


def answer_row(answer: Answer | None) -> Sequence[Any] | None:
    """Return the stored form of an answer: a `FailedRow`, or number, kind of result and fields of a reply."""
    if answer is None:
        return None
    if isinstance(answer, Failed):
        return FailedRow(answer.number, _FAILED, answer.code, answer.text, answer.opcode)
    result = answer.result
    fields = tuple(result)
    if isinstance(result, GetOk) and result.history is not None:
        fields = tuple(result._replace(history=result.history.row()))
    elif isinstance(result, Got):
        *fields, histories, contract = result
        fields += [[(key, each.row()) for key, each in histories.items()], contract]
    return answer.number, _RESULTS.index(type(result)) + 1, *fields


def build_answer(node: str, session: int, row: Sequence[Any] | None) -> Answer | None:
    if row is None:
        return None
    number, kind, *fields = row
    if kind == _FAILED:
        failed = FailedRow(*row)
        return Failed(node, session, failed.code, failed.text, failed.opcode, number)
    result = _RESULTS[kind - 1]._make(fields)
    if isinstance(result, GetOk):
        history = History.from_row(result.history) if result.history else None
        result = result._replace(range=Range(*result.range), history=history)
    elif isinstance(result, Got):
        consumer, ranges, remaining, histories, contract = fields
        known = {key: History.from_row(row) for key, row in histories}
        result = Got(consumer, [Range(*each) for each in ranges], remaining, known, contract)
    return Reply(node, session, result, number)


class ClientCreditRow(NamedTuple):
    """The part of a consumer whose client sets the credit: the fields of `ClientCredit`."""

    wants_activity: bool
    number: int
    is_draining: bool
    wants_state: bool
    was_active: bool

    @classmethod
    def from_state(cls, credit: ClientCredit) -> ClientCreditRow:
        return cls(*(getattr(credit, field) for field in cls._fields))


class ConsumerRow(NamedTuple):
    """A consumer, without the messages it holds."""

    node: str
    session: int
    channel: int
    id: int
    queue: int
    """The queue's number."""
    tag: str
    credit: int
    prefetch: int
    no_ack: bool
    exclusive: bool
    auto_credit: bool
    cancel_on_failover: bool
    can_be_cancelled: bool
    default_timeout_ms: int
    arguments: Table
    has_budget: bool
    live: bool
    next_id: int
    marks: list[tuple[int, int]]
    client_credit: ClientCreditRow | None

    @classmethod
    def from_state(cls, frozen: FrozenConsumer) -> ConsumerRow:
        consumer = frozen.consumer
        return cls(
            consumer.node,
            consumer.session,
            consumer.channel,
            consumer.id,
            consumer.queue.number,
            consumer.tag,
            frozen.credit,
            frozen.prefetch,
            consumer.no_ack,
            consumer.exclusive,
            consumer.auto_credit,
            consumer.cancel_on_failover,
            consumer.can_be_cancelled,
            consumer.default_timeout_ms,
            consumer.arguments,
            consumer.budget is not None,
            frozen.live,
            frozen.next_id,
            frozen.marks,
            frozen.client_credit and ClientCreditRow.from_state(frozen.client_credit),
        )

    def build(self, queue: Queue, budget: Budget, held: Iterable[HeldRow]) -> Consumer:
        """Build the consumer; `budget` is its session's budget, and `held` are its messages."""
        return Consumer(
            node=self.node,
            session=self.session,
            channel=self.channel,
            id=self.id,
            queue=queue,
            tag=self.tag,
            credit=self.credit,
            prefetch=self.prefetch,
            no_ack=self.no_ack,
            exclusive=self.exclusive,
            auto_credit=self.auto_credit,
            cancel_on_failover=self.cancel_on_failover,
            can_be_cancelled=self.can_be_cancelled,
            default_timeout_ms=self.default_timeout_ms,
            arguments=self.arguments,
            settings=consumer_settings_of(self.arguments),
            budget=budget if self.has_budget else None,
            live=self.live,
            next_id=self.next_id,
            unacked=build_held(held),
            marks=[list(mark) for mark in self.marks],
            client_credit=ClientCredit(*self.client_credit) if self.client_credit else None,
        )


CHANGES[ConsumerRow] = {13: more_fields(None)}
