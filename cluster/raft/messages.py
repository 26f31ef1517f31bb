"""The messages between peers of one group, and their wire format. Sans-IO.

A frame is a kind byte and a body. Those that carry data are laid out by hand so that payloads are copied once on
receipt and never on sending; the others are msgpack arrays of the fields.

    append = 1 | term u64 | commit u64 | prev index u64 | prev term u64 | count u32 | table | payload...
    table  = (term u64, length u32)...
    chunk  = 11 | snapshot u64 | file u32 | offset u64 | crc32 u32 | data
    transfer = 17 | term u64 | name

Invariant: a frame that a node makes has at most `FRAME_BYTES_MAX`, so every link takes it. What `decode` returns has
fields of the types and in the ranges that they are declared with, whatever was received.
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
from cluster.log.hardstate import Standing
from cluster.raft.elections import Role
from cluster.runtime.ports import Buffer, pack

QUESTION_BYTES_MAX = 16 * 1024
ANSWER_BYTES_MAX = 256 * 1024
"""How long questions and answers may be. They share the links with the log, and must not be long in its way."""
FRAME_BYTES_MAX = ENTRY_BYTES_MAX + 64 * 1024
"""How large a frame may be: as an append of the largest entry, or a forward of the largest batch, with its head."""


class LogEntry(NamedTuple):
    """pysyncobj's form of an entry: the order of its fields is fixed by it."""

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


class Appended(NamedTuple):
    """Answer to an `Append` of `term`.

    `success`: the log matches up to `next_index` - 1; `reset`: send again from `next_index` on. Index and term of the
    last entry tell, by log matching, which log it is that answers (Raft paper, 5.3).
    """

    term: int
    next_index: int
    success: bool
    reset: bool
    last_index: int
    last_term: int


class Hearing(NamedTuple):
    """A follower's sign of life to the leader of `term`.

    It is sent while an `Appended` has to wait for the rest of a large message, or for the disk.
    """

    term: int


class VoteRequest(NamedTuple):
    term: int
    last_index: int
    last_term: int


class Vote(NamedTuple):
    """A vote for the candidate that has asked for it in `term`; whoever refuses sends nothing."""

    term: int


class PreVoteRequest(NamedTuple):
    """Asks whether the receiver would vote for the sender in `term` (Raft thesis 9.6); it changes no term or vote."""

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

    Without it a pre-vote cluster could never take in a node whose term is ahead.
    """

    term: int


class TimeoutNow(NamedTuple):
    """Asks a voter to campaign at once, to take the leadership over (Raft thesis 3.10)."""

    term: int


class Transfer(NamedTuple):
    """Asks the leader of `term` to hand over to the member `to`, or to anybody if that is empty."""

    term: int
    to: str


class Forward(NamedTuple):
    """Batches for the leader of `term`, in their wire form one behind the other."""

    term: int
    batches: Sequence[Buffer]


class Alarm(IntFlag):
    """What a node is low on, as bits of one number."""

    DISK = 1
    MEMORY = 2


class Status(NamedTuple):
    """What a node says of itself on every new link and once a second."""

    state: int
    term: int
    last_index: int
    commit_index: int
    applied_index: int
    standing: int
    """The `Standing` of the node, as a number."""
    first_index: int
    """The index of the first entry of the node's log."""
    checkpoint_index: int
    disk_bytes: int
    """How large the files of the node's log are, in bytes."""
    disk_free_bytes: int
    alarm: int
    """What the node is low on: an `Alarm`, as a number."""
    time_ms: int
    """The cluster's time as the node knows it, in milliseconds; 0 while it hears no majority, or has no vote."""
    wall_ms: int
    """The node's wall clock, in milliseconds since 1970."""
    steady_ms: int
    """The node's wall clock without jumps that are not believed yet (clock.py)."""
    hears_leader: int = 1
    """1 if it leads, or has heard the leader within the last moments; else 0. Release 0.1 does not tell: its nodes are
    taken to hear it, or no node could be stopped in good order during an upgrade."""
    may_lead: int = 1
    """1 if the node's disk and log allow it to lead; 0 while its disk is full or its log damaged."""
    misses: tuple[str, ...] = ()
    """The other members that it has no link with, or does not hear. Release 0.1 does not tell: its nodes are taken to
    miss nobody."""
    disk_hangs: int = 0
    """1 while the node's disk does not come to the end of a sync, so that it acknowledges nothing; else 0."""


class Introduction(NamedTuple):
    """What a node tells on each new link: which data directory it has, where it is, what its program can run."""

    member_id: bytes
    host: str
    """The host and the port at which the other nodes reach the node."""
    port: int
    low: int
    """`low` and `high`: the versions of the state that the node's program can run, both included."""
    high: int
    may_join: int
    """1 if the cluster may take the directory in unasked: it is new, or its log is of this cluster; else 0."""
    joins: int = 0
    """1 if somebody has told the node to join: then it may come again under a name that was removed; else 0."""


class MembersTold(NamedTuple):
    """What a node tells those who cannot know it from their own log: new nodes, and such as have been removed."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """The index of the entry that holds the configuration: of two that are told, the later one is to be believed."""
    configuration: Configuration


class ChangeRequest(NamedTuple):
    """Asks the leader for a change of the members. The leader answers only if it refuses."""

    number: int
    """A number that the asking node has chosen, and that the answer repeats."""
    change: MemberChange


class ChangeRefused(NamedTuple):
    """Tells why the leader does not make the change that had this number."""

    number: int
    text: str


class SnapshotFile(NamedTuple):
    """A sealed segment that belongs to a snapshot, with entries from `first` to before `end`."""

    first: int
    end: int
    size: int
    sparse: bool


class Offer(NamedTuple):
    """A leader's answer to a log that ends before its own begins: everything it has on disk.

    The peer asks for file 0, the checkpoint, and for files 1, 2..., the segments, as fast as it can store them.
    """

    snapshot: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """Index of the checkpoint; `term` is the term of that entry."""
    term: int
    checkpoint_size: int
    segments: Sequence[SnapshotFile]

    @property
    def size(self) -> int:
        """How many bytes all files have together."""
        return self.checkpoint_size + sum(file.size for file in self.segments)


class Fetch(NamedTuple):
    """Asks for `length` bytes of a file of a snapshot, from `offset` on."""

    snapshot: int
    file: int
    offset: int
    length: int


class SnapshotChunk(NamedTuple):
    """A part of a file of a snapshot; `crc` is that of the data."""

    snapshot: int
    file: int
    offset: int
    crc: int
    data: Buffer


class Withdrawn(NamedTuple):
    """Tells a peer that it cannot fetch this snapshot any more."""

    snapshot: int


class Spoilt(NamedTuple):
    """Tells a peer that a file of its snapshot is damaged, although all of it has arrived as it was sent."""

    snapshot: int
    file: int


class Inquiry(NamedTuple):
    """Asks a node something that the shells of the nodes understand. It is answered once."""

    number: int
    """A number that the asking node has chosen, and that the answer repeats."""
    question: bytes


class InquiryAnswer(NamedTuple):
    """The answer to the inquiry of this number; empty if there is nothing to say."""

    number: int
    answer: bytes


Message = (
    Append
    | Appended
    | Hearing
    | VoteRequest
    | Vote
    | PreVoteRequest
    | PreVote
    | HigherTerm
    | TimeoutNow
    | Transfer
    | Forward
    | Status
    | Offer
    | Fetch
    | SnapshotChunk
    | Withdrawn
    | Spoilt
    | Introduction
    | MembersTold
    | ChangeRequest
    | ChangeRefused
    | Inquiry
    | InquiryAnswer
)


class OutgoingMessage(NamedTuple):
    """A message to a peer that may leave when the journal has synced `sync_point` of its changes."""

    sync_point: int
    peer: str
    message: Message


class MalformedFrame(ValueError):
    """An authenticated peer sent something that is not a frame of this protocol."""


NOT_IN_RELEASE_0_1 = (
    Transfer,
    Introduction,
    MembersTold,
    ChangeRequest,
    ChangeRefused,
    Inquiry,
    InquiryAnswer,
)
STATUS_FIELDS_OF_RELEASE_0_1 = 14

_KIND_APPEND = 1
_KIND_FORWARD = 2
_KIND_CHUNK = 11
_KIND_OFFER = 12
_KIND_TRANSFER = 17
_KIND_INTRODUCTION = 18
_KIND_MEMBERS_TOLD = 19
_KIND_CHANGE_REQUEST = 20
_KIND_CHANGE_REFUSED = 21
_SMALL: dict[int, type[Any]] = {
    3: Appended,
    4: VoteRequest,
    5: Vote,
    6: PreVoteRequest,
    7: PreVote,
    8: HigherTerm,
    9: TimeoutNow,
    10: Status,
    13: Fetch,
    14: Withdrawn,
    15: Spoilt,
    16: Hearing,
    22: Inquiry,
    23: InquiryAnswer,
}
_SMALL_KINDS = {message_type: bytes([kind]) for kind, message_type in _SMALL.items()}
FREE_BYTES_MAX = 2**64 - 1
"""More free bytes than these are told as these. Some file systems without a limit tell of 2^63 and more."""
_HIGHEST = {
    "disk_free_bytes": FREE_BYTES_MAX,
    "state": max(Role),
    "standing": max(Standing),
    "hears_leader": 1,
    "may_lead": 1,
    "disk_hangs": 1,
    "may_join": 1,
    "port": PORT_MAX,
}
"""The highest numbers of fields that end elsewhere than at `COUNT_MAX`. Flags and verbs that are not known are taken as
they are: of flags only the known ones are looked at, and who asks for an unknown change is told that it is unknown."""
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
"""For each field its name, its type, and the highest number that it may be. What has several parts has texts."""
_APPEND = struct.Struct("<BQQQQI")
_FORWARD = struct.Struct("<BQ")
_TRANSFER = struct.Struct("<BQ")
_CHUNK = struct.Struct("<BQIQI")
_ENTRY = struct.Struct("<QI")

Checked = TypeVar("Checked", bound=tuple[Any, ...])


def encode_for_release_0_1(message: Message) -> list[Buffer]:
    """The frame as buffers for a node of that release; none for a message that it does not know."""
    if isinstance(message, NOT_IN_RELEASE_0_1):
        return []
    if isinstance(message, Status):
        return [_SMALL_KINDS[Status], pack(message[:STATUS_FIELDS_OF_RELEASE_0_1])]
    return encode(message)


def encode(message: Message) -> list[Buffer]:
    """Encode a message as a frame: buffers that are to be written one behind the other."""
    if isinstance(message, Append):
        entries = message.entries
        head = _APPEND.pack(_KIND_APPEND, *message[:4], len(entries))
        table = [_ENTRY.pack(entry[2], len(entry[0])) for entry in entries]
        return [b"".join([head, *table]), *(entry[0] for entry in entries)]
    small_kind = _SMALL_KINDS.get(type(message))
    if small_kind is not None:
        return [small_kind, pack(message)]
    if isinstance(message, Forward):
        return [_FORWARD.pack(_KIND_FORWARD, message.term), *message.batches]
    if isinstance(message, SnapshotChunk):
        return [_CHUNK.pack(_KIND_CHUNK, *message[:4]), message.data]
    if isinstance(message, Transfer):
        return [_TRANSFER.pack(_KIND_TRANSFER, message.term), message.to.encode()]
    if isinstance(message, Offer):
        return [bytes([_KIND_OFFER]), pack(message)]
    if isinstance(message, Introduction):
        return [bytes([_KIND_INTRODUCTION]), pack(message)]
    if isinstance(message, MembersTold):
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
        if kind == _KIND_FORWARD:
            return Forward(_count(_FORWARD.unpack_from(frame)[1]), [frame[_FORWARD.size :]])
        if kind == _KIND_CHUNK:
            numbers = map(_count, _CHUNK.unpack_from(frame)[1:])
            return SnapshotChunk._make([*numbers, memoryview(frame)[_CHUNK.size :]])
        if kind == _KIND_TRANSFER:
            return _checked(Transfer(_TRANSFER.unpack_from(frame)[1], frame[_TRANSFER.size :].decode()))
        fields = msgpack.unpackb(frame[1:], use_list=False)
        if kind == _KIND_OFFER:
            *numbers, segments = fields
            files = [_checked(SnapshotFile(*row)) for row in segments]
            return Offer._make([*map(_count, numbers), files])
        if kind == _KIND_INTRODUCTION:
            return _decode_introduction(fields)
        if kind == _KIND_MEMBERS_TOLD:
            term, index, configuration = fields
            return MembersTold(_count(term), _count(index), configuration_from(configuration))
        if kind == _KIND_CHANGE_REQUEST:
            number, *change = fields
            return ChangeRequest(_count(number), _checked(MemberChange(*change)))
        if kind == _KIND_CHANGE_REFUSED:
            return _checked(ChangeRefused(*fields))
        return _checked(_SMALL[kind](*fields))
    except (struct.error, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise MalformedFrame(f"frame of kind {kind}, {len(frame)} bytes: {error}") from error


def _checked(message: Checked) -> Checked:
    """The message, if its fields are of their types and in their ranges. Raises MalformedFrame."""
    for value, (name, kind, highest) in zip(message, _RULES[type(message)], strict=True):
        if type(value) is int is kind and 0 <= value <= highest:
            continue  # most are, and there is one of these for each message of a client
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
    told = _checked(Introduction(*fields))
    if len(told.member_id) != ID_BYTES or told.low > told.high:
        raise MalformedFrame("Introduction without an id, or with the lowest version above the highest")
    return told


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
