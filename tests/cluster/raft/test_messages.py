"""Messages between peers as bytes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.configuration.change_request import MemberChange, Verb
from cluster.configuration.configuration import COUNT_MAX
from cluster.log.hardstate import VoterStatus
from cluster.raft.elections import Role
from cluster.raft.log_matching import ForeignLog
from cluster.raft.messages import (
    Alarm,
    Append,
    AppendResponse,
    BrokerMessage,
    ChangeRefused,
    ChangeRequest,
    FetchChunk,
    Forward,
    HeartbeatResponse,
    HigherTerm,
    Introduction,
    LogEntry,
    MalformedFrame,
    MembersReport,
    Memory,
    Message,
    PreVote,
    PreVoteRequest,
    Query,
    QueryAnswer,
    SnapshotChunk,
    SnapshotDamaged,
    SnapshotFile,
    SnapshotOffer,
    SnapshotWithdrawn,
    Status,
    TimeoutNow,
    Transfer,
    Vote,
    VoteRequest,
    decode,
    encode,
)
from cluster.runtime.ports import pack
from cluster.storage.fail_stop import RemovedFromCluster
from tests.cluster.configurations import configuration_of
from tests.cluster.harness import Growing

STATUS = Status(Role.LEADER, 7, 9, 8, 8, VoterStatus.VOTER, 1, 5, 10**6, 10**9, Alarm.DISK, 5, 6, 7)
MESSAGES: list[Message] = [
    Append(7, 8, 9, 7, [LogEntry(b"\x01", 10, 7), LogEntry(b"", 11, 7)]),
    AppendResponse(7, 10, success=True, reset=False, last_index=9, last_term=7),
    HeartbeatResponse(7),
    VoteRequest(7, 9, 7),
    Vote(7),
    PreVoteRequest(8, 9, 7, 3),
    PreVote(7, 3, granted=True),
    HigherTerm(8),
    TimeoutNow(7),
    Memory(7, 9, 1),
    Transfer(7, "n1"),
    Forward(7, [b"batches"]),
    STATUS,
    SnapshotOffer(
        1, 9, 7, 500, [SnapshotFile(1, 5, 300, sparse=True), SnapshotFile(5, 10, 200, sparse=False)]
    ),
    FetchChunk(1, 0, 0, 100),
    SnapshotChunk(1, 0, 0, 5, b"data"),
    SnapshotWithdrawn(1),
    SnapshotDamaged(1, 2),
    Introduction(b"i" * 16, "n1", 5680, 7, 8, 1),
    MembersReport(7, 9, configuration_of("abc", "d")),
    ChangeRequest(1, MemberChange(Verb.ADD, "n4", b"", "10.0.0.4", 25672)),
    ChangeRefused(1, "why not"),
    Query(3, b"how are you"),
    QueryAnswer(3, b"well"),
    BrokerMessage([b"replies"]),
]


def frame_of(message: Message) -> bytes:
    return b"".join(encode(message))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_travels_as_it_is(message: Message) -> None:
    assert decode(frame_of(message)) == message


def test_forward_of_batches_that_may_wait_travels_as_it_is() -> None:
    forward = Forward(7, [b"batches"], may_wait=True)
    assert decode(frame_of(forward)) == forward
    assert frame_of(forward)[0] not in {frame_of(message)[0] for message in MESSAGES}


def test_each_type_of_message_has_a_kind_of_its_own() -> None:
    """Two changes that were merged had taken the same kind for two types."""
    kinds = {frame_of(message)[0] for message in MESSAGES}
    assert len(kinds) == len({type(message) for message in MESSAGES})


@pytest.mark.parametrize("to", ["", "n1", "nœud-1"])
def test_a_name_travels_as_it_is(to: str) -> None:
    frame = frame_of(Transfer(7, to))
    assert decode(frame) == Transfer(7, to)
    with pytest.raises(MalformedFrame):
        decode(frame[:8])
    with pytest.raises(MalformedFrame):
        decode(frame + b"\xff")


@pytest.mark.parametrize(
    "message",
    [
        STATUS._replace(voter_status=3),
        STATUS._replace(state=3),
        STATUS._replace(term=COUNT_MAX + 1),
        STATUS._replace(hears_leader=2),
        Vote(COUNT_MAX + 1),
        Append(COUNT_MAX + 1, 0, 0, 0, []),
        Append(7, 0, 0, 0, [LogEntry(b"", 1, COUNT_MAX + 1)]),
        Forward(COUNT_MAX + 1, []),
        Transfer(COUNT_MAX + 1, ""),
        SnapshotChunk(COUNT_MAX + 1, 0, 0, 0, b""),
        Introduction(b"i" * 16, "n1", 65_536, 7, 8, 1),
        Introduction(b"i" * 16, "n1", 1, 9, 8, 1),
        ChangeRequest(1, MemberChange(Verb.ADD, "n4", b"", "n4", 65_536)),
    ],
)
def test_message_that_this_release_never_sends_is_malformed(message: Message) -> None:
    with pytest.raises(MalformedFrame):
        decode(frame_of(message))


def test_a_table_of_entries_is_not_believed_beyond_its_frame() -> None:
    frame = bytearray(frame_of(Append(7, 8, 9, 7, [])))
    frame[-4:] = b"\xff" * 4
    with pytest.raises(MalformedFrame):
        decode(bytes(frame))


def test_unknown_change_or_alarm_is_accepted() -> None:
    """The leader refuses an unknown change with a reason, and a status with a new alarm is accepted."""
    for message in (ChangeRequest(1, MemberChange(99)), STATUS._replace(alarm=Alarm.DISK | 64)):
        assert decode(frame_of(message)) == message


# Any frame

counts = st.sampled_from(
    [0, 1, 2, 3, 7, 9, 255, 2**31, 2**32, 2**40, COUNT_MAX, 2**63, 2**64 - 1]
) | st.integers(-1, 12)
values = st.one_of(
    counts, st.booleans(), st.none(), st.text(max_size=20), st.binary(max_size=20), st.floats(allow_nan=False)
)


@st.composite
def changed_fields(draw: st.DrawFn) -> bytes:
    """A msgpack frame with some changed fields, at any depth."""
    frame = frame_of(draw(st.sampled_from(MESSAGES)))
    try:
        fields: Any = msgpack.unpackb(frame[1:])
    except ValueError:
        return frame
    for _ in range(draw(st.integers(1, 3))):
        where = fields
        while isinstance(where, list) and where:
            position = draw(st.integers(0, len(where) - 1))
            if not isinstance(where[position], list) or draw(st.booleans()):
                where[position] = draw(counts if isinstance(where[position], int) else values)
                break
            where = where[position]
    return frame[:1] + pack(fields)


@st.composite
def changed_bytes(draw: st.DrawFn) -> bytes:
    """A frame with some changed or missing bytes."""
    frame = bytearray(frame_of(draw(st.sampled_from(MESSAGES))))
    for position in draw(st.lists(st.integers(1, len(frame) - 1), max_size=3)):
        frame[position] = draw(st.integers(0, 255))
    return bytes(frame[: draw(st.integers(0, len(frame)))])


frames = changed_fields() | changed_bytes() | st.binary(max_size=40)


@given(frames)
@settings(max_examples=3 * settings.default.max_examples)
def test_any_frame_is_malformed_or_a_message_that_can_be_sent(frame: bytes) -> None:
    try:
        message = decode(frame)
    except MalformedFrame:
        return
    assert decode(frame_of(message)) == message


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd"), frames), min_size=1, max_size=12))
@settings(max_examples=min(30, settings.default.max_examples), deadline=None)
@pytest.mark.slow
def test_frame_of_a_member_stops_a_node_only_by_its_content(
    received: list[tuple[int, str, bytes]],
) -> None:
    """A leader may report a foreign log, and any peer the removal of a node."""
    growing = Growing()
    growing.start()
    growing.add_fourth()
    for number, peer, frame in received:
        node = growing.members[number]
        if node.runtime.alive and node.name != peer:
            node.runtime.enter(
                lambda node=node, peer=peer, frame=frame: node.group.inbox.frame_received(peer, frame)
            )
        growing.world.run_until(growing.world.now_s + 0.05)
    growing.world.run_until(growing.world.now_s + 1.0)
    assert all(isinstance(error, ForeignLog | RemovedFromCluster) for error in growing.failures), (
        growing.failures
    )
