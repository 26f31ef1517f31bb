from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qq.amqp_server.methods import METHODS
from qq.machine.handlers.publishing import PublishHandlers
from qq.machine.handlers.registry import HANDLERS, check_handlers, handles
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import (
    COMMAND_BYTES_MAX,
    InvalidCommand,
    MalformedBatch,
    Publication,
    check_command,
    decode_batch,
    decode_commands,
    decode_kept,
    encode_batch,
    is_kept,
    keep,
    messages_of,
    pack,
    unpack,
    unpack_list,
)
from qq.machine.protocol.commands import (
    OPCODES,
    AttachConsumer,
    ChangeVhostLimits,
    Command,
    Commit,
    DeclareQueue,
    Enqueue,
    JoinFragments,
    Method,
    OpenChannel,
    Publish,
    PutHashedUser,
    PutPolicy,
    PutUser,
    Recover,
    Settle,
    StoreFragment,
    command,
)
from qq.machine.protocol.versions import VERSIONS
from qq.stored.properties import NO_PRIORITY, NO_TTL
from qq.tables import TABLE_BYTES_MAX
from tests.machine.machine_driver import batch

TABLE = {
    "void": None,
    "flag": True,
    "number": -7,
    "big": 2**63,
    "real": 0.5,
    "text": "straße",
    "bytes": b"\x00\xff",
    "decimal": Decimal("-12.345"),
    "time": dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
    "list": [1, [2, {"a": "b"}]],
    "table": {"x": {"y": []}},
}


def raw(rows: object, *, count: int = 0, sizes: bytes = b"", tail: bytes = b"") -> bytes:
    packed = pack(rows)
    return struct.pack("<II", count, len(packed)) + sizes + packed + tail


def test_batch_is_decoded_as_it_was_encoded() -> None:
    commands: list[Command] = [
        Enqueue(1, 1, 2, "", "q", False, 1),
        DeclareQueue(1, 1, "q", False, True, False, False, False, TABLE),
        PutUser("u", b"salt", b"hash", ["administrator"]),
        PutHashedUser("u", b"salt", b"hash", [], "md5"),
        ChangeVhostLimits("/", {"max-queues": -1, "max-connections": None}),
        Enqueue(2, 0, 1, "x", "\udcff-is-not-utf8", True, 2),
        Settle(7, 0, 2**64 - 1),
    ]
    payload = b"".join(encode_batch(commands, [b"one", b"", b"three"]))

    decoded = decode_batch(memoryview(payload))

    assert decoded.commands == decode_commands(payload) == commands
    bodies = [payload[start:end] for start, end in zip(decoded.offsets, decoded.offsets[1:], strict=False)]
    assert bodies == [b"one", b"", b"three"]
    assert list(map(messages_of, commands)) == [2, 0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", "head is cut short"),
        (b"\0" * 7, "head is cut short"),
        (struct.pack("<II", 0, 5), "commands are cut short"),
        (struct.pack("<II", 2**32 - 1, 0), "4294967295 messages"),
        (struct.pack("<II", 0, 1) + b"\xc1", "not readable"),
        (struct.pack("<II", 0, 2) + b"\x90\x90", "not readable"),
        (struct.pack("<II", 0, 5) + b"\xdd\xff\xff\xff\xff", "not readable"),
        (struct.pack("<II", 0, 6) + b"\xd6\x07abcd", "unknown extension 7"),
        (raw({}), "not a list"),
        (raw([7]), "no opcode"),
        (raw([[]]), "no opcode"),
        (raw([[True, 1, 2]]), "no opcode"),
        (raw([[[], 1]]), "no opcode"),
        (raw([[0]]), "command 0 is not known"),
        (raw([[99]]), "command 99 is not known"),
        (raw([[2, 1, 2]]), "fields of Settle"),
        (raw([[2, 1, 2, 3, 4]]), "fields of Settle"),
        (raw([[2, 1, 2, "3"]]), "fields of Settle"),
        (raw([[2, 1, 2, 3.0]]), "fields of Settle"),
        (raw([[2, True, 2, 3]]), "fields of Settle"),
        (raw([[2, 1, -1, 3]]), "negative number in Settle"),
        (raw([[21, "u", b"", b"", [1]]]), "list of PutUser"),
        (raw([[21, "u", b"", b"", [], "md5"]]), "fields of PutUser"),
        (raw([[50, "u", b"", b"", []]]), "fields of PutHashedUser"),
        (raw([[12, 1, 1, b"q"]]), "fields of PurgeQueue"),
        (raw([[36, 1, 1, "q", False, True, False, False, False, {b"k": 1}]]), "no name"),
        (raw([[10, 1, 1, "q", False, True, False, False, {}]]), "command 10 is not known"),
        (raw([[1, 1, 1, 0, "", "q", False, 1]]), "no messages"),
        (raw([[1, 1, 1, 2, "", "q", False, 1]], count=1, sizes=b"\0" * 4), "2 messages are published and 1"),
        (raw([], count=1, sizes=b"\0" * 4), "0 messages are published and 1"),
    ],
)
def test_a_malformed_batch_is_named_as_such(payload: bytes, error: str) -> None:
    with pytest.raises(MalformedBatch, match=error):
        decode_commands(payload)
    machine = QueueMachine()
    before = machine.digest()
    with pytest.raises(MalformedBatch, match=error):
        machine.apply_batch("n1", 1, 0, 0, payload)
    assert machine.digest() == before


def test_inconsistent_message_sizes_are_found_when_decoding() -> None:
    payload = batch([Enqueue(1, 1, 1, "", "q", False, 1)], [b"abc"])
    with pytest.raises(MalformedBatch, match="messages end at"):
        decode_batch(payload + b"x")
    with pytest.raises(MalformedBatch, match="messages end at"):
        decode_batch(payload[:-1])


def declaring(table: dict[str, Any]) -> DeclareQueue:
    return DeclareQueue(1, 1, "q", False, True, False, False, False, table)


def test_check_command_returns_the_encoded_size() -> None:
    command = declaring(TABLE)
    assert check_command(command, VERSIONS[0]) == len(batch([command])) - len(batch([]))


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (declaring({"a": set()}), "DeclareQueue: a field table holds a set"),
        (declaring({"x": "y" * TABLE_BYTES_MAX}), f"larger than {TABLE_BYTES_MAX} bytes"),
        (Settle(1, 0, 2**64), "Settle: "),
        (Settle(1, -1, 0), "a negative number in Settle"),
        (DeclareQueue(1, 1, "\ud800", False, True, False, False, False, {}), "DeclareQueue: .*surrogates"),
        (PutUser("u", b"", b"", ["x" * COMMAND_BYTES_MAX]), f"PutUser of .* larger than {COMMAND_BYTES_MAX}"),
        (PutUser("u", b"", b"", [None]), "a list of PutUser"),  # pyright: ignore[reportArgumentType]
        (PutUser("u", "", b"", []), "fields of PutUser"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_command_that_the_log_cannot_hold_is_refused(command: Command, error: str) -> None:
    with pytest.raises(InvalidCommand, match=error):
        check_command(command, VERSIONS[0])


counts = st.lists(st.integers(1, 4), min_size=1, max_size=5)
publications = st.builds(
    Publication,
    st.sampled_from(["", "x"]),
    st.sampled_from(["q", "\udcff"]),
    st.integers(1, 2),
    st.sampled_from([(), (), ("cc",), ("cc", "\udcff")]),
)


def ranges_of(messages: set[int]) -> list[tuple[int, int]]:
    """Ordinals as (first, count), ascending, apart from each other."""
    ranges: list[tuple[int, int]] = []
    for message in sorted(messages):
        if ranges and sum(ranges[-1]) == message:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((message, 1))
    return ranges


@given(st.data(), counts, st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)))
def test_compacted_batch_keeps_exactly_the_live_messages(
    data: st.DataObject, counts: list[int], wanted: set[int], then_wanted: set[int]
) -> None:
    requested: list[Command] = []
    publish_of: list[Publication] = []
    for count in counts:
        exchange, key, channel, more_keys, _ = data.draw(publications)
        fragments, goes_on = data.draw(st.tuples(st.integers(0, 2), st.booleans()))
        requested += [StoreFragment(1)] * fragments + [JoinFragments(1)] * goes_on
        publication = Publication(exchange, key, channel, tuple(more_keys))
        publish_of += [Publication("", "", 0)] * fragments
        publish_of += [publication._replace(goes_on=goes_on)] + [publication] * (count - 1)
        enqueue = Enqueue(1, 1, count, exchange, key, False, channel)
        if more_keys or data.draw(st.booleans()):
            requested.append(Publish(*enqueue, list(more_keys), NO_PRIORITY, NO_TTL, 0, "", 0))
        else:
            requested.append(enqueue)
        requested.append(Settle(1, 0, 0))
    bodies = [bytes([number]) * (number % 3) for number in range(len(publish_of))]
    payload = batch(requested, bodies)

    kept = keep(memoryview(payload), ranges_of(wanted))

    found: dict[int, bytes] = {}
    for piece in decode_kept(kept):
        for ordinal, (start, end) in enumerate(pairwise(piece.offsets), piece.first):
            assert piece.publication == publish_of[ordinal]
            found[ordinal] = kept[start:end]
    assert list(found) == sorted(found)
    assert found == {ordinal: body for ordinal, body in enumerate(bodies) if ordinal in wanted}
    assert is_kept(kept)
    assert not is_kept(payload)
    # Compacting twice equals compacting once for the second set.
    assert keep(kept, ranges_of(then_wanted)) == keep(payload, ranges_of(wanted & then_wanted))
    machine = QueueMachine()
    assert machine.compact(memoryview(kept), ranges_of(then_wanted)) == keep(kept, ranges_of(then_wanted))


@pytest.mark.parametrize(
    "requested",
    [
        [Commit(1, 1)],
        [Commit(1, 2), Settle(1, 0, 0)],
        [Commit(1, 1), Recover(1)],
        [Commit(1, 1), Commit(1, 0)],
        [Commit(1, 2**64 - 1), Settle(1, 0, 0)],
        [Commit(1, 1), StoreFragment(1)],
        [Commit(1, 2), JoinFragments(1), Enqueue(1, 0, 1, "", "q", False, 1)],
    ],
)
def test_transaction_must_contain_only_publishes_and_settlements(requested: list[Command]) -> None:
    assert len(decode_commands(batch([Commit(1, 1), Settle(1, 0, 0), Commit(1, 0)]))) == 3
    with pytest.raises(MalformedBatch):
        decode_commands(batch(requested))


def test_compacted_batch_is_small() -> None:
    requested = [Enqueue(1, 1, 1, "a long exchange name", "a long routing key", False, 1) for _ in range(100)]
    payload = batch(requested, [b"message"] * 100)
    assert len(keep(payload, [(0, 100)])) < 100 * (len(b"message") + 8) + 100
    assert len(keep(payload, [(7, 1)])) < 80


@pytest.mark.parametrize(
    "payload", [b"", b"x" * 20, batch([Enqueue(1, 1, 1, "", "q", False, 1)], [b"abc"]) + b"x"]
)
def test_a_batch_that_cannot_be_read_is_not_compacted_in_silence(payload: bytes) -> None:
    with pytest.raises(MalformedBatch):
        keep(payload, [(0, 1)])
    with pytest.raises(MalformedBatch):
        QueueMachine().compact(memoryview(payload), [(0, 1)])


@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 100))
def test_damaged_kept_messages_are_read_or_named_as_such(place: int, value: int, cut: int) -> None:
    requested = [Enqueue(1, 1, 2, "x", "q", False, 1), Enqueue(1, 1, 2, "y", "q", False, 1)]
    kept = bytearray(keep(batch(requested, [b"1", b"22", b"", b"4444"]), [(1, 1), (3, 1)]))
    kept[place % len(kept)] = value
    damaged = bytes(kept[: len(kept) - cut])
    try:
        pieces = decode_kept(damaged)
    except MalformedBatch:
        return
    assert all(piece.offsets[-1] <= len(damaged) for piece in pieces)


@given(st.binary(max_size=40))
def test_unpacking_anything_gives_a_value_or_a_value_error(data: bytes) -> None:
    try:
        value = unpack(data)
    except ValueError:
        return
    pack(value)


NESTED = st.recursive(st.integers(-(2**63), 2**63) | st.text(max_size=3) | st.binary(max_size=3), st.lists)


@given(st.lists(NESTED), st.lists(st.integers(0, 4)))
def test_unpack_list_gives_the_same_list_in_any_number_of_calls(value: list[Any], levels: list[int]) -> None:
    data = pack(value)
    assert unpack_list(data, levels) == value
    with pytest.raises(ValueError, match=r"behind|extra"):
        unpack_list(data + b"\0", levels)


@example(b"\xdd\xff\xff\xff\xff", [])  # of 32 GiB, if it were believed
@given(st.binary(max_size=40), st.lists(st.integers(0, 4), max_size=5))
def test_any_list_is_read_equally_in_many_calls_and_in_a_single(data: bytes, levels: list[int]) -> None:
    try:
        value = unpack(data)
    except ValueError:
        with pytest.raises(ValueError):
            unpack_list(data, levels)
    else:
        assert repr(unpack_list(data, levels)) == repr(value)


def test_every_command_has_an_opcode_and_a_handler() -> None:
    machine = QueueMachine()
    assert set(METHODS) == set(Method.__args__)
    # These two are carried out in the loop itself.
    assert set(machine._handlers) | set(machine._methods) == set(OPCODES) - {Enqueue, Commit}
    # No method of AMQP 0-9-1 leads to the last command.
    assert set(machine._methods) == set(METHODS) - {Enqueue, Publish, Commit, OpenChannel} | {AttachConsumer}


def test_command_must_have_a_number_of_its_own() -> None:
    for taken in (OPCODES[Enqueue], 6):
        with pytest.raises(TypeError, match=f"opcode {taken} of int is taken"):
            command(taken)(int)


def test_command_has_a_single_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    check_handlers(Enqueue, Commit)
    with pytest.raises(TypeError, match="Publish has two handlers"):
        handles(Publish, cost=1)(PublishHandlers.publish)
    monkeypatch.delitem(HANDLERS, Publish)
    with pytest.raises(TypeError, match="no handler of Publish"):
        check_handlers(Enqueue, Commit)


def test_policies_have_negative_priorities_since_version_8() -> None:
    policy = PutPolicy("/", "p", False, "", "all", -20, {"expires": 1})
    expected = (
        "PutPolicy: priority may be negative from version 8 of the state on, "
        "and the cluster has agreed on version 7"
    )
    with pytest.raises(InvalidCommand, match=expected):
        check_command(policy, 7)
    check_command(policy, 8)
    payload = b"".join(bytes(part) for part in encode_batch([policy], []))
    assert decode_commands(payload, 8) == [policy]
    with pytest.raises(MalformedBatch):
        decode_commands(payload, 7)
