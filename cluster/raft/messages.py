"""Messages between the peers of a group, and their wire format. Sans-IO.

A frame is a kind byte and a body. Messages with large data have a hand-made layout, so payloads are copied once on
receipt and never on sending. All other messages are msgpack arrays of their fields.

    append = 1 | term u64 | commit u64 | prev index u64 | prev term u64 | count u32 | table | payload...
    table  = (term u64, length u32)...
    chunk  = 11 | snapshot u64 | file u32 | offset u64 | crc32 u32 | data
    transfer = 17 | term u64 | name
    broker message = 28 | data

Invariant: a frame has at most `FRAME_BYTES_MAX`, so every link carries it. `decode` returns only messages whose fields
have the declared types and ranges, whatever bytes it gets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntFlag
from typing import Any, NamedTuple, TypeVar, get_origin, get_type_hints

import msgpack

from cluster.configuration.change_request import MemberChange
from cluster.configuration.configuration import (
    COUNT_MAX,
    ID_BYTES,
    PORT_MAX,
    Configuration,
    configuration_from,
    fields_of,
    is_count,
)
from cluster.log.entry import ENTRY_BYTES_MAX
from cluster.log.hardstate import VoterStatus
from cluster.raft.elections import Role
from cluster.runtime.ports import Buffer, pack

QUESTION_BYTES_MAX = 16 * 1024
ANSWER_BYTES_MAX = 256 * 1024
"""Bytes of the largest question and answer. They share the links with the log, and must not delay it for long."""
FRAME_BYTES_MAX = ENTRY_BYTES_MAX + 64 * 1024
"""Bytes of the largest frame: an append of the largest entry, or a forward of the largest batch, with its head."""


class LogEntry(NamedTuple):
    """pysyncobj's form of an entry, which fixes the order of the fields."""

    payload: bytes
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    term: int


class Append(NamedTuple):
    """Raft AppendEntries: `entries` follow `prev_index` without a gap."""

    term: int
    commit_index: int
    prev_index: int
    prev_term: int
    entries: Sequence[LogEntry]


class AppendResponse(NamedTuple):
    """Answer to an `Append` of `term`.

    `success`: the log matches up to `next_index` - 1. `reset`: the leader should send again from `next_index` on. Index
    and term of the last entry identify the answering log, by log matching (Raft paper, 5.3).
    """

    term: int
    next_index: int
    success: bool
    reset: bool
    last_index: int
    last_term: int


class HeartbeatResponse(NamedTuple):
    """A follower's sign of life to the leader of `term`.

    The follower sends it while its `AppendResponse` must wait for the rest of a large message, or for the disk.
    """

    term: int


class VoteRequest(NamedTuple):
    term: int
    last_index: int
    last_term: int


class Vote(NamedTuple):
    """A vote for the candidate that asked for it in `term`. A member that refuses sends no answer."""

    term: int


class PreVoteRequest(NamedTuple):
    """Asks whether the receiver would vote for the sender in `term` (Raft thesis 9.6). It changes no term or vote."""

    term: int
    last_index: int
    last_term: int
    round: int


class PreVote(NamedTuple):
    """Answer to round `round`; `term` is the answering node's current term."""

    term: int
    round: int
    granted: bool


class HigherTerm(NamedTuple):
    """Answer to a message of an old term.

    Without it, a cluster with pre-votes could never take in a node whose term is ahead.
    """

    term: int


class TimeoutNow(NamedTuple):
    """Asks a voter to campaign at once, to take the leadership over (Raft thesis 3.10)."""

    term: int


class Transfer(NamedTuple):
    """Asks the leader of `term` to hand over to the member `to`, or to any member if `to` is empty."""

    term: int
    to: str


class Forward(NamedTuple):
    """Batches for the leader of `term`, concatenated in their wire form."""

    term: int
    batches: Sequence[Buffer]
    may_wait: bool = False
    """Whether the leader may keep the batches for its next entry."""


class Alarm(IntFlag):
    """Resources that a node is short of, as bit flags."""

    DISK = 1
    MEMORY = 2


class Status(NamedTuple):
    """A node's report about itself, sent on every new link and once a second."""

    state: int
    term: int
    last_index: int
    commit_index: int
    applied_index: int
    voter_status: int
    """The node's voter status, a `VoterStatus` as a number."""
    first_index: int
    """Index of the first entry of the node's log."""
    checkpoint_index: int
    disk_bytes: int
    """Bytes of the files of the node's log."""
    disk_free_bytes: int
    alarm: int
    """Resources that the node is short of, an `Alarm` as a number."""
    time_ms: int
    """The cluster's time that the node knows, in ms; 0 while it hears no majority, or is no voter."""
    wall_ms: int
    """The node's wall clock, in milliseconds since 1970."""
    steady_ms: int
    """The node's wall clock without unbelieved jumps, in milliseconds since 1970 (cluster_clock.py)."""
    hears_leader: int = 1
    """1 if the node leads or has heard the leader lately; else 0. Nodes of release 0.1 do not send it, and count as
    hearing the leader. Otherwise no node could be stopped in good order during an upgrade."""
    may_lead: int = 1
    """1 if the node's disk and log allow it to lead; 0 while its disk is full or its log damaged."""
    misses: tuple[str, ...] = ()
    """Names of the members that the node has no link to, or does not hear. Nodes of release 0.1 do not send it, and
    count as hearing all members."""
    disk_hangs: int = 0
    """1 while a sync of the node's disk hangs, so that the node acknowledges no entries; else 0."""
    vouched_index: int = 0
    """Last entry that the node has on its disk and knows to be in the log of the leader of `term`; 0 if unknown. This
    field and the next are sent from the version of the state on that reports losses (`Machine.losses_since`)."""
    rolled_back_ms: int = 0
    """When this process learnt that its directory was put back as it was earlier, in ms since 1970; or 0."""


class Memory(NamedTuple):
    """Tells a member the latest promise of its data directory that the sender remembers (promises.py)."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    is_certain: int
    """1 if the member has shown less than the promise. 0 if the promise is of an earlier process of the member, which
    compares it with its start."""


class Introduction(NamedTuple):
    """A node's identity, sent on each new link: data directory, address, and versions that its program can run."""

    member_id: bytes
    host: str
    """Host and port at which the other nodes reach the node."""
    port: int
    low: int
    """`low` and `high`: the versions of the state that the node's program can run, both included."""
    high: int
    may_join: int
    """1 if the cluster may admit the directory unasked, because it is new or its log is of this cluster; else 0."""
    joins: int = 0
    """1 if an operator has set the node to join. Then it may return under a name that was removed. Else 0."""


class MembersReport(NamedTuple):
    """The members, for nodes that cannot learn them from their own log: new nodes, and removed nodes."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """Index of the entry that holds the configuration. A node believes the configuration with the highest index."""
    configuration: Configuration


class ChangeRequest(NamedTuple):
    """Asks the leader for a change of the members. The leader answers only if it refuses."""

    number: int
    """Number chosen by the asking node. The answer repeats it."""
    change: MemberChange


class ChangeRefused(NamedTuple):
    """The leader's reason to refuse the change with this number."""

    number: int
    text: str


class SnapshotFile(NamedTuple):
    """A sealed segment that belongs to a snapshot, with entries from `first` to before `end`."""

    first: int
    end: int
    size: int
    sparse: bool


class SnapshotOffer(NamedTuple):
    """A leader's offer of all its files to a peer whose log ends before the leader's log begins.

    The peer fetches file 0 (the checkpoint) and files 1, 2... (the segments) as fast as it can store them.
    """

    snapshot: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """Index of the checkpoint. `term` is the term of the entry at this index."""
    term: int
    checkpoint_size: int
    segments: Sequence[SnapshotFile]

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return self.checkpoint_size + sum(file.size for file in self.segments)


class FetchChunk(NamedTuple):
    """Asks for `length` bytes of a file of a snapshot, beginning at `offset`."""

    snapshot: int
    file: int
    offset: int
    length: int


class SnapshotChunk(NamedTuple):
    """A part of a file of a snapshot; `crc` is the CRC-32 of the data."""

    snapshot: int
    file: int
    offset: int
    crc: int
    data: Buffer


class SnapshotWithdrawn(NamedTuple):
    """Tells a peer that this snapshot cannot be fetched any more."""

    snapshot: int


class SnapshotDamaged(NamedTuple):
    """Tells the sender of a snapshot that a file of it is damaged, although it arrived as it was sent."""

    snapshot: int
    file: int


class Query(NamedTuple):
    """A question from a node's broker to the broker of a second node. It is answered once."""

    number: int
    """Number chosen by the asking node. The answer repeats it."""
    question: bytes


class QueryAnswer(NamedTuple):
    """The answer to the query with this number; empty if the node has no answer."""

    number: int
    answer: bytes


class ReadIndexRequest(NamedTuple):
    """Asks the leader of `term` for the index that a read must wait for (Raft thesis 6.4)."""

    term: int
    number: int
    """Number chosen by the asking node. The answer repeats it."""
    applied_index: int
    """Index of the last entry that the asking node has applied."""
    confirms: int
    """1 if the asking node is a voter that knows its last vote, so its term confirms the leader's; else 0."""


class ReadIndexAnswer(NamedTuple):
    """The leader's answer to the request with this number."""

    term: int
    number: int
    read_index: int
    """The read is up to date when this entry is applied."""


class TermCheck(NamedTuple):
    """Asks a member whether `term` is still the highest term that it knows. The answer repeats `round`."""

    term: int
    round: int


class TermConfirmed(NamedTuple):
    """A voter's answer to a `TermCheck`. A member that knows a higher term sends no answer."""

    term: int
    round: int


class BrokerMessage(NamedTuple):
    """A message from a node's broker to the broker of a peer, sent once. The layer above defines the contents."""

    data: Sequence[Buffer]


Message = (
    Append
    | AppendResponse
    | HeartbeatResponse
    | VoteRequest
    | Vote
    | PreVoteRequest
    | PreVote
    | HigherTerm
    | TimeoutNow
    | Memory
    | Transfer
    | Forward
    | Status
    | SnapshotOffer
    | FetchChunk
    | SnapshotChunk
    | SnapshotWithdrawn
    | SnapshotDamaged
    | Introduction
    | MembersReport
    | ChangeRequest
    | ChangeRefused
    | Query
    | QueryAnswer
    | ReadIndexRequest
    | ReadIndexAnswer
    | TermCheck
    | TermConfirmed
    | BrokerMessage
)


class OutgoingMessage(NamedTuple):
    """A message to a peer that may leave when the journal has synced `sync_point` of its changes."""

    sync_point: int
    peer: str
    message: Message


class MalformedFrame(ValueError):
    """An authenticated peer sent bytes that are not a frame of this protocol."""


NOT_IN_RELEASE_0_1 = (
    Memory,
    Transfer,
    Introduction,
    MembersReport,
    ChangeRequest,
    ChangeRefused,
    Query,
    QueryAnswer,
    ReadIndexRequest,
    ReadIndexAnswer,
    TermCheck,
    TermConfirmed,
    BrokerMessage,
)
STATUS_FIELDS_OF_RELEASE_0_1 = 14
STATUS_FIELDS_WITHOUT_LOSSES = 18
"""Fields that all programs since release 0.1 read."""

_KIND_APPEND = 1
_KIND_FORWARD = 2
_KIND_CHUNK = 11
_KIND_OFFER = 12
_KIND_TRANSFER = 17
_KIND_INTRODUCTION = 18
_KIND_MEMBERS_TOLD = 19
_KIND_CHANGE_REQUEST = 20
_KIND_CHANGE_REFUSED = 21
_KIND_BROKER_MESSAGE = 28
_KIND_FORWARD_MAY_WAIT = 30
_SMALL: dict[int, type[Any]] = {
    3: AppendResponse,
    4: VoteRequest,
    5: Vote,
    6: PreVoteRequest,
    7: PreVote,
    8: HigherTerm,
    9: TimeoutNow,
    10: Status,
    13: FetchChunk,
    14: SnapshotWithdrawn,
    15: SnapshotDamaged,
    16: HeartbeatResponse,
    22: Query,
    23: QueryAnswer,
    24: ReadIndexRequest,
    25: ReadIndexAnswer,
    26: TermCheck,
    27: TermConfirmed,
    29: Memory,
}
_SMALL_KINDS = {message_type: bytes([kind]) for kind, message_type in _SMALL.items()}
FREE_BYTES_MAX = 2**64 - 1
"""Largest number of free bytes that a status reports. Some file systems without a limit report 2^63 and more."""
_HIGHEST = {
    "disk_free_bytes": FREE_BYTES_MAX,
    "state": max(Role),
    "voter_status": max(VoterStatus),
    "hears_leader": 1,
    "may_lead": 1,
    "disk_hangs": 1,
    "is_certain": 1,
    "may_join": 1,
    "confirms": 1,
    "port": PORT_MAX,
}
"""Highest values of fields with a bound other than `COUNT_MAX`. Unknown flags and verbs are accepted: unknown flags are
ignored, and an unknown change is refused with an answer."""
_RULES = {
    message_type: [
        (
            name,
            get_origin(kind) or (int if kind is bool else kind),
            1 if kind is bool else _HIGHEST.get(name, COUNT_MAX),
        )
        for name, kind in get_type_hints(message_type).items()
    ]
    for message_type in (*_SMALL.values(), SnapshotFile, Introduction, MemberChange, ChangeRefused, Transfer)
}
"""For each message type, its fields: name, type, highest number. Tuples must consist of texts."""
_APPEND = struct.Struct("<BQQQQI")
_FORWARD = struct.Struct("<BQ")
_TRANSFER = struct.Struct("<BQ")
_CHUNK = struct.Struct("<BQIQI")
_ENTRY = struct.Struct("<QI")

Checked = TypeVar("Checked", bound=tuple[Any, ...])


def encode_for_release_0_1(message: Message) -> list[Buffer]:
    """Encode a message for a node of release 0.1, as buffers. The list is empty if that release lacks the message."""
    if isinstance(message, NOT_IN_RELEASE_0_1):
        return []
    if isinstance(message, Status):
        return [_SMALL_KINDS[Status], pack(message[:STATUS_FIELDS_OF_RELEASE_0_1])]
    return encode(message)


def encode_without_losses(status: Status) -> list[Buffer]:
    """Encode a status for nodes whose programs may not know the fields about losses."""
    return [_SMALL_KINDS[Status], pack(status[:STATUS_FIELDS_WITHOUT_LOSSES])]


def encode(message: Message) -> list[Buffer]:
    """Encode a message as a frame, a list of buffers to be written in order."""
    if isinstance(message, Append):
        entries = message.entries
        head = _APPEND.pack(_KIND_APPEND, *message[:4], len(entries))
        table = [_ENTRY.pack(entry[2], len(entry[0])) for entry in entries]
        return [b"".join([head, *table]), *(entry[0] for entry in entries)]
    small_kind = _SMALL_KINDS.get(type(message))
    if small_kind is not None:
        return [small_kind, pack(message)]
    if isinstance(message, Forward):
        kind = _KIND_FORWARD_MAY_WAIT if message.may_wait else _KIND_FORWARD
        return [_FORWARD.pack(kind, message.term), *message.batches]
    if isinstance(message, BrokerMessage):
        return [bytes([_KIND_BROKER_MESSAGE]), *message.data]
    if isinstance(message, SnapshotChunk):
        return [_CHUNK.pack(_KIND_CHUNK, *message[:4]), message.data]
    if isinstance(message, Transfer):
        return [_TRANSFER.pack(_KIND_TRANSFER, message.term), message.to.encode()]
    if isinstance(message, SnapshotOffer):
        return [bytes([_KIND_OFFER]), pack(message)]
    if isinstance(message, Introduction):
        return [bytes([_KIND_INTRODUCTION]), pack(message)]
    if isinstance(message, MembersReport):
        return [bytes([_KIND_MEMBERS_TOLD]), pack([*message[:2], fields_of(message.configuration)])]
    if isinstance(message, ChangeRequest):
        return [bytes([_KIND_CHANGE_REQUEST]), pack([message.number, *message.change])]
    if isinstance(message, ChangeRefused):
        return [bytes([_KIND_CHANGE_REFUSED]), pack(message)]
    raise RuntimeError(f"no frame is known for {type(message).__name__}")


def decode(frame: bytes) -> Message:
    """Decode the message in a frame. Raises `MalformedFrame`."""
    kind = frame[0] if frame else 0
    try:
        if kind == _KIND_APPEND:
            return _decode_append(frame)
        if kind in (_KIND_FORWARD, _KIND_FORWARD_MAY_WAIT):
            term = _count(_FORWARD.unpack_from(frame)[1])
            return Forward(term, [frame[_FORWARD.size :]], may_wait=kind == _KIND_FORWARD_MAY_WAIT)
        if kind == _KIND_BROKER_MESSAGE:
            return BrokerMessage([frame[1:]])
        if kind == _KIND_CHUNK:
            numbers = map(_count, _CHUNK.unpack_from(frame)[1:])
            return SnapshotChunk._make([*numbers, memoryview(frame)[_CHUNK.size :]])
        if kind == _KIND_TRANSFER:
            return _checked(Transfer(_TRANSFER.unpack_from(frame)[1], frame[_TRANSFER.size :].decode()))
        fields = msgpack.unpackb(frame[1:], use_list=False)
        if kind == _KIND_OFFER:
            *numbers, segments = fields
            files = [_checked(SnapshotFile(*row)) for row in segments]
            return SnapshotOffer._make([*map(_count, numbers), files])
        if kind == _KIND_INTRODUCTION:
            return _decode_introduction(fields)
        if kind == _KIND_MEMBERS_TOLD:
            term, index, configuration = fields
            return MembersReport(_count(term), _count(index), configuration_from(configuration))
        if kind == _KIND_CHANGE_REQUEST:
            number, *change = fields
            return ChangeRequest(_count(number), _checked(MemberChange(*change)))
        if kind == _KIND_CHANGE_REFUSED:
            return _checked(ChangeRefused(*fields))
        return _checked(_SMALL[kind](*fields))
    except (struct.error, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"frame of kind {kind}, {len(frame)} bytes: {error}") from error


def _checked(message: Checked) -> Checked:
    """Return the message if its fields have the declared types and ranges. Raises MalformedFrame."""
    for value, (name, kind, highest) in zip(message, _RULES[type(message)], strict=True):
        if type(value) is int is kind and 0 <= value <= highest:
            continue  # the usual case, checked first because each client message causes such a check
        parts_are_right = kind is not tuple or all(isinstance(part, str) for part in value)
        is_number = isinstance(value, int)
        if not (isinstance(value, kind) and parts_are_right) or (is_number and not 0 <= value <= highest):
            raise MalformedFrame(f"{type(message).__name__} whose {name} is {value!r:.100}")
    return message


def _count(value: Any) -> int:
    """Return the value if it is a number in the range of counts. Raises MalformedFrame."""
    if not is_count(value):
        raise MalformedFrame(f"{value!r:.100} in place of a number")
    return value


def _decode_introduction(fields: Any) -> Introduction:
    introduction = _checked(Introduction(*fields))
    if len(introduction.member_id) != ID_BYTES or introduction.low > introduction.high:
        raise MalformedFrame("Introduction without an id, or with the lowest version above the highest")
    return introduction


def _decode_append(frame: bytes) -> Append:
    _, term, commit_index, prev_index, prev_term, count = _APPEND.unpack_from(frame)
    position = _APPEND.size + _ENTRY.size * count
    if position > len(frame):
        raise MalformedFrame(f"append with a table of {count} entries that it has no room for")
    index, highest = prev_index, max(term, commit_index, prev_index, prev_term)
    entries: list[LogEntry] = []
    for entry_term, length in _ENTRY.iter_unpack(frame[_APPEND.size : position]):
        index += 1
        entries.append(LogEntry(frame[position : position + length], index, entry_term))
        position += length
        highest = max(highest, entry_term)
    if position != len(frame):
        raise MalformedFrame("append whose payloads do not fill the frame")
    _count(highest)
    return Append(term, commit_index, prev_index, prev_term, entries)
