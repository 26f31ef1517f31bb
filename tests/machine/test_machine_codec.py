from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_driver import batch

from qq.machine.codec import (
    TABLE_DEPTH_MAX,
    MalformedBatch,
    check_table,
    decode_batch,
    decode_commands,
    encode_batch,
    pack,
    unpack,
)
from qq.machine.commands import METHODS, OPCODES, Command, DeclareQueue, Enqueue, Method, PutUser, Settle
from qq.machine.machine import QueueMachine

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


def test_a_batch_comes_back_as_it_was_sent() -> None:
    commands: list[Command] = [
        Enqueue(1, 1, 2, "", "q", False, 1),
        DeclareQueue(1, 1, "q", False, True, False, False, TABLE),
        PutUser("u", b"salt", b"hash", ["administrator"]),
        Enqueue(2, 0, 1, "x", "\udcff-is-not-utf8", True, 2),
        Settle(7, 0, 2**64 - 1),
    ]
    payload = b"".join(encode_batch(commands, [b"one", b"", b"three"]))

    decoded = decode_batch(memoryview(payload))

    assert decoded.commands == decode_commands(payload) == commands
    bodies = [payload[start:end] for start, end in zip(decoded.offsets, decoded.offsets[1:], strict=False)]
    assert bodies == [b"one", b"", b"three"]
    assert [decoded.enqueue_of(message).session for message in range(3)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("payload", "complaint"),
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
        (raw([[0]]), "unknown opcode 0"),
        (raw([[99]]), "unknown opcode 99"),
        (raw([[2, 1, 2]]), "fields of Settle"),
        (raw([[2, 1, 2, 3, 4]]), "fields of Settle"),
        (raw([[2, 1, 2, "3"]]), "fields of Settle"),
        (raw([[2, 1, 2, 3.0]]), "fields of Settle"),
        (raw([[2, True, 2, 3]]), "fields of Settle"),
        (raw([[2, 1, -1, 3]]), "negative number in Settle"),
        (raw([[21, "u", b"", b"", [1]]]), "list of PutUser"),
        (raw([[12, 1, 1, b"q"]]), "fields of PurgeQueue"),
        (raw([[10, 1, 1, "q", False, True, False, False, {b"k": 1}]]), "no name"),
        (raw([[1, 1, 1, 0, "", "q", False, 1]]), "no messages"),
        (raw([[1, 1, 1, 2, "", "q", False, 1]], count=1, sizes=b"\0" * 4), "2 messages are published and 1"),
        (raw([], count=1, sizes=b"\0" * 4), "0 messages are published and 1"),
    ],
)
def test_a_malformed_batch_is_named_as_such(payload: bytes, complaint: str) -> None:
    with pytest.raises(MalformedBatch, match=complaint):
        decode_commands(payload)
    machine = QueueMachine()
    before = machine.digest()
    assert machine.apply_batch("n1", 1, 0, 0, payload) == []
    assert machine.digest() == before


def test_sizes_that_do_not_add_up_are_found_when_the_messages_are_wanted() -> None:
    payload = batch([Enqueue(1, 1, 1, "", "q", False, 1)], [b"abc"])
    with pytest.raises(MalformedBatch, match="messages end at"):
        decode_batch(payload + b"x")
    with pytest.raises(MalformedBatch, match="messages end at"):
        decode_batch(payload[:-1])


def test_a_table_is_checked_before_it_is_sent() -> None:
    check_table(TABLE)
    deep: dict[str, object] = {}
    for _ in range(TABLE_DEPTH_MAX):
        deep = {"d": deep}
    with pytest.raises(MalformedBatch, match="nested deeper"):
        check_table(deep)
    with pytest.raises(MalformedBatch, match="holds a set"):
        check_table({"a": set()})


@given(st.binary(max_size=40))
def test_unpacking_anything_gives_a_value_or_a_value_error(data: bytes) -> None:
    try:
        value = unpack(data)
    except ValueError:
        return
    pack(value)


def test_every_command_has_an_opcode_a_handler_and_if_it_can_fail_a_method() -> None:
    machine = QueueMachine()
    assert set(OPCODES) == set(Command.__args__)
    assert set(METHODS) == set(Method.__args__)
    assert set(machine._handlers) | set(machine._methods) == set(OPCODES)
    assert set(machine._methods) == set(METHODS) - {Enqueue}
    assert len(set(OPCODES.values())) == len(OPCODES)
