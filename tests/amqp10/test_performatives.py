"""Composites by their one definition: octets of the standard and of clients, missing, superfluous and wrong fields."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qq.amqp10.composites import encode_composite, from_described
from qq.amqp10.conditions import Condition, ConditionError
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    Coordinator,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    ErrorReply,
    FlowFrame,
    ModifiedState,
    OpenFrame,
    ReceivedState,
    ReceiverSettleMode,
    RejectedState,
    ReleasedState,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TerminusDurability,
    TransferFrame,
)
from qq.amqp10.values import Array, Described, Symbol, UByte, UInt, ULong, Uuid, Value, decode, encode

ERROR = ErrorReply("not-it", "n", {Symbol("q"): "q"})
COMPOSITES: list[tuple[Any, str]] = [
    (OpenFrame("c"), "005310 c0(01 a10163)"),
    (
        OpenFrame("c", "h", 512, 63, 30000, ("en",), ("fr",), ("a", "b"), ("d",), {Symbol("k"): "v"}),
        (
            "005310 c0(0a a10163 a10168 7000000200 60003f 7000007530 e0(01 a3 02656e) e0(01 a3 026672)"
            " e0(02 a3 0161 0162) e0(01 a3 0164) c1(02 a3016b a10176))"
        ),
    ),
    (BeginFrame(None, 0, 400, 2**32 - 1), "005311 c0(04 40 43 7000000190 70ffffffff)"),
    (BeginFrame(7, 1, 2, 3, 255, ("a",)), "005311 c0(06 600007 5201 5202 5203 52ff e0(01 a3 0161))"),
    (
        AttachFrame("n", 0, role=True, source=SourceTerminus("/queues/q"), target=TargetTerminus()),
        (
            "005312 c0(07 a1016e 43 41 40 40 "
            "005328 c0(0b a1092f7175657565732f71 40404040404040404040) 005329 c0(07 40404040404040))"
        ),
    ),
    (
        AttachFrame(
            "n",
            1,
            False,
            SenderSettleMode.SETTLED,
            ReceiverSettleMode.SECOND,
            SourceTerminus(
                None,
                TerminusDurability.UNSETTLED_STATE,
                "never",
                5,
                True,
                {},
                "move",
                {},
                ReleasedState(),
                ("x",),
                ("y",),
            ),
            Coordinator(("t",)),
            {},
            True,
            9,
            1024,
        ),
        (
            "005312 c0(0b a1016e 5201 42 5001 5001"
            " 005328 c0(0b 40 5202 a3056e65766572 5205 41 c1(00) a3046d6f7665 c1(00) 00532645 e0(01a30178)"
            " e0(01a30179))"
            " 005330 c0(01 e0(01 a3 0174)) c1(00) 41 5209 800000000000000400)"
        ),
    ),
    (FlowFrame(None, 400, 0, 2**32 - 1), "005313 c0(04 40 7000000190 43 70ffffffff)"),
    (
        FlowFrame(1, 2, 3, 4, 0, 5, 100, 6, True, True),
        "005313 c0(0a 5201 5202 5203 5204 43 5205 5264 5206 41 41)",
    ),
    (TransferFrame(0, 0, b"t", 0, False), "005314 c0(05 43 43 a00174 43 42)"),
    (
        TransferFrame(1, 2, b"", 3, True, True, ReceiverSettleMode.FIRST, AcceptedState(), True, True, True),
        "005314 c0(0b 5201 5202 a000 5203 41 41 5000 00532445 41 41 41)",
    ),
    (DispositionFrame(True, 0), "005315 c0(02 41 43)"),
    (DispositionFrame(True, 1, 2, True, AcceptedState()), "005315 c0(05 41 5201 5202 41 00532445)"),
    (
        DispositionFrame(False, 1, None, False, ReceivedState(1, 2), True),
        "005315 c0(06 42 5201 40 40 005323 c0(02 5201 5302) 41)",
    ),
    (DetachFrame(3, True), "005316 c0(02 5203 41)"),
    (EndFrame(ERROR), "005317 c0(01 00531d c0(03 a3066e6f742d6974 a1016e c1(02 a30171 a10171)))"),
    (CloseFrame(), "00531845"),
    (CloseFrame(ErrorReply("c")), "005318 c0(01 00531d c0(03 a30163 40 40))"),
    (RejectedState(ErrorReply("c")), "005325 c0(01 00531d c0(03 a30163 40 40))"),
    (RejectedState(), "00532545"),
    (ModifiedState(True, True, {Symbol("x-a"): UInt(1)}), "005327 c0(03 41 41 c1(02 a303782d61 5201))"),
    (ModifiedState(undeliverable_here=True), "005327 c0(02 40 41)"),
    (SaslMechanisms(("PLAIN", "AMQP")), "005340 c0(01 e0(02 a3 05504c41494e 04414d5150))"),
    (SaslInit("PLAIN", b"\0u\0p", "h"), "005341 c0(03 a305504c41494e a00400750070 a10168)"),
    (SaslChallenge(b"c"), "005342 c0(01 a00163)"),
    (SaslResponse(b"r"), "005343 c0(01 a00172)"),
    (SaslOutcome(SaslCode.AUTH), "005344 c0(01 5001)"),
]
"""Composites and their octets. Parentheses stand for the size of what they enclose."""


def octets_of(text: str) -> bytes:
    text = text.replace(" ", "")
    while "(" in text:
        text = re.sub(r"\(([0-9a-f]*)\)", lambda found: f"{len(found[1]) // 2:02x}{found[1]}", text)
    return bytes.fromhex(text)


@pytest.mark.parametrize(("composite", "octets"), COMPOSITES)
def test_composite_round_trips(composite: Any, octets: str) -> None:
    data = encode_composite(composite)
    assert data.hex(" ") == octets_of(octets).hex(" ")
    decoded = from_value(data)
    assert decoded == composite
    assert type(decoded) is type(composite)
    assert [type(field) for field in decoded] == [type(field) for field in composite]


def from_value(data: bytes) -> Any:
    value = decode(data)
    assert isinstance(value, Described)
    return from_described(value)


@pytest.mark.parametrize("descriptor", [ULong(0x16), Symbol("amqp:detach:list")])
def test_composite_is_read_by_each_descriptor_and_form(descriptor: Value) -> None:
    for fields in ([UInt(3), True], {Symbol("closed"): True, Symbol("handle"): UInt(3)}):
        assert from_described(Described(descriptor, fields)) == DetachFrame(3, closed=True)


def test_described_value_is_kept_when_its_descriptor_is_unknown() -> None:
    state = Described(ULong(0x34), [b"txn"])
    frame = DispositionFrame(role=True, first=0, state=state)
    assert from_value(encode_composite(frame)) == frame
    for descriptor in ("amqp:detach:list", UInt(0x16), Described(ULong(1), None), [], ULong(0x77)):
        assert from_described(Described(descriptor, [])) == Described(descriptor, [])


def test_field_of_several_values_may_be_a_single_symbol() -> None:
    mechanisms = ULong(0x40)
    for value in (Symbol("a"), Array(0xB3, [Symbol("a")])):
        assert from_described(Described(mechanisms, [value])) == SaslMechanisms(("a",))
    open_frame = from_described(Described(ULong(0x10), ["c", *[None] * 6, Array(0xA3, [])]))
    assert open_frame.offered_capabilities == ()


INVALID = [
    (0x16, [], Condition.INVALID_FIELD, "amqp:detach:list: handle is missing"),
    (0x16, [None, True], Condition.INVALID_FIELD, "amqp:detach:list: handle is missing"),
    (0x16, {}, Condition.INVALID_FIELD, "amqp:detach:list: handle is missing"),
    (0x16, {Symbol("x"): None}, Condition.DECODE_ERROR, "amqp:detach:list has no field 'x'"),
    (0x16, [UByte(1)], Condition.DECODE_ERROR, "amqp:detach:list: handle is no uint"),
    (0x16, [True], Condition.DECODE_ERROR, "amqp:detach:list: handle is no uint"),
    (0x16, [UInt(1), UInt(1)], Condition.DECODE_ERROR, "amqp:detach:list: closed is no boolean"),
    (0x16, [UInt(1), None, None, None], Condition.DECODE_ERROR, "amqp:detach:list has 4 fields instead of 3"),
    (0x16, None, Condition.DECODE_ERROR, "amqp:detach:list is no list"),
    (0x16, [UInt(1), None, []], Condition.DECODE_ERROR, "amqp:detach:list: error is no amqp:error:list"),
    (
        0x16,
        [UInt(1), None, Described(ULong(0x24), [])],
        Condition.DECODE_ERROR,
        "amqp:detach:list: error is no amqp:error:list",
    ),
    (
        0x16,
        [UInt(1), None, Described(ULong(0x1D), [])],
        Condition.INVALID_FIELD,
        "amqp:error:list: condition is missing",
    ),
    (0x10, [Symbol("c")], Condition.DECODE_ERROR, "amqp:open:list: container-id is no string"),
    (
        0x10,
        ["c", *[None] * 6, Array(0xA1, ["text"])],
        Condition.DECODE_ERROR,
        "amqp:open:list: offered-capabilities is no symbols",
    ),
    (
        0x12,
        ["n", UInt(0), True, UByte(3)],
        Condition.INVALID_FIELD,
        "amqp:attach:list: snd-settle-mode is 3 is not a valid SenderSettleMode",
    ),
    (
        0x14,
        [UInt(0), UInt(0), b"t" * 33],
        Condition.INVALID_FIELD,
        "amqp:transfer:list: delivery-tag is longer than TAG_BYTES_MAX=32 octets",
    ),
    (
        0x14,
        [UInt(0), UInt(0), Uuid(b"t" * 16)],
        Condition.DECODE_ERROR,
        "amqp:transfer:list: delivery-tag is no binary",
    ),
    (
        0x28,
        [None, None, Symbol("soon")],
        Condition.INVALID_FIELD,
        "amqp:source:list: expiry-policy is 'soon'",
    ),
]


@pytest.mark.parametrize(("code", "fields", "condition", "text"), INVALID)
def test_invalid_composite_is_refused_with_a_condition(
    code: int, fields: Value, condition: Condition, text: str
) -> None:
    described = decode(encode(Described(ULong(code), fields)))
    assert isinstance(described, Described)
    with pytest.raises(ConditionError) as error:
        from_described(described)
    assert (error.value.condition, error.value.description) == (condition, text)
