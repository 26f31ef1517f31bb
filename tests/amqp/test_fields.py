import struct
from decimal import Decimal

import pytest
from pamqp import commands, encode

from qq.amqp.fields import CLIENT_METHODS, decode_method, decode_publish
from qq.errors import ChannelError, ConnectionFault, ReplyCode
from qq.octets import octets_of
from qq.stored import fields
from qq.stored.fields import (
    VALID_PROPERTIES_MAX,
    FieldError,
    TableLimitExceeded,
    check_properties,
    decode_properties,
    decode_table,
    properties_valid,
    valid_properties,
)
from qq.tables import TABLE_BYTES_MAX, TABLE_DEPTH_MAX

Basic = commands.Basic


def table(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def nested(depth: int) -> bytes:
    """Return nested tables of this depth."""
    data = b""
    for _ in range(depth - 1):
        data = b"\x01aF" + table(data)
    return table(data)


def headers(data: bytes) -> bytes:
    return b"\x20\x00" + data


def payload(method: object) -> bytes:
    return struct.pack(">I", method.index) + method.marshal()


def filled(cls: type) -> object:
    """Return a complete method of the class, with text in its text fields."""
    method = cls()
    for name in method.attributes():
        kind = method.amqp_type(name)
        if kind == "longstr":
            setattr(method, name, "ünï")
        elif getattr(method, name) is None:
            setattr(method, name, "tag" if kind == "shortstr" else 7)
    return method


@pytest.mark.parametrize("cls", CLIENT_METHODS.values(), ids=lambda cls: cls.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_client_method_is_decoded_like_in_pamqp(cls: type) -> None:
    method = filled(cls)
    known = cls()
    known.unmarshal(method.marshal())
    assert dict(decode_method(payload(method))) == dict(known)


@pytest.mark.parametrize("cls", CLIENT_METHODS.values(), ids=lambda cls: cls.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_method_that_is_cut_or_too_long_is_a_syntax_error(cls: type) -> None:
    method = filled(cls)
    whole = payload(method)
    for wrong in [whole[:size] for size in range(4, len(whole))] + [whole + b"\0"]:
        with pytest.raises(ConnectionFault) as caught:
            decode_method(wrong)
        assert caught.value.code == ReplyCode.SYNTAX_ERROR
        assert (caught.value.class_id, caught.value.method_id) == (cls.index >> 16, cls.index & 0xFFFF)


def test_all_field_types_are_decoded() -> None:
    data = b"".join(
        b"\x01" + value
        for value in (
            b"tt\x01",
            b"bb\xff",
            b"BB\xff",
            b"ss\xff\xff",
            b"uu\xff\xff",
            b"II" + b"\xff" * 4,
            b"ii" + b"\xff" * 4,
            b"ll" + b"\xff" * 8,
            b"LL" + b"\xff" * 8,
            b"ff" + struct.pack(">f", 0.5),
            b"dd" + struct.pack(">d", 0.1),
            b"DD" + struct.pack(">Bi", 2, -123),
            b"SS" + table(b"text"),
            b"zS" + table(b"\xff"),
            b"xx" + table(b"\xff"),
            b"TT" + bytes(8),
            b"VV",
            b"FF" + table(b"\x01at\x00"),
            b"AA" + table(b"VB\x07"),
        )
    )
    decoded, stop = decode_table(table(data), 0, len(data) + 4)
    assert stop == len(data) + 4
    assert decoded.pop("T").timestamp() == 0
    integers = {"b": -1, "B": 255, "s": -1, "u": 65535, "I": -1, "i": 2**32 - 1, "l": -1, "L": -1}
    numbers = {"f": 0.5, "d": 0.1, "D": Decimal("-1.23")}
    octets = {"S": "text", "z": b"\xff", "x": b"\xff"}
    others = {"t": True, "V": None, "F": {"a": False}, "A": [None, 7]}
    assert decoded == integers | numbers | octets | others


def test_a_timestamp_that_no_calendar_has_stays_a_number() -> None:
    data = table(b"\x01TT" + b"\xff" * 8)
    assert decode_table(data, 0, len(data))[0] == {"T": 2**64 - 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        table(b"\x01"),
        table(b"\x01a"),
        table(b"\x05a"),
        table(b"\x01aZ"),
        table(b"\x01a\x00"),
        table(b"\x01aI\0\0"),
        table(b"\x01aS\0\0\0\x09abc"),
        table(b"\x01aF\0\0\0\x09abc"),
        table(b"\x01aA\0\0\0\x02VVVV"),
        b"\0\0\0\x09\x01at\x00",
        b"\xff\xff\xff\xff",
        nested(TABLE_DEPTH_MAX + 1),
    ],
)
def test_a_wrong_table_is_refused(data: bytes) -> None:
    assert not properties_valid(headers(data))


def test_octets_of_field_names_survive() -> None:
    data = table(b"\x04caf\xe9F" + table(b"\x01\xfft\1"))
    fields, _ = decode_table(data, 0, len(data))
    assert octets_of(next(iter(fields))) == b"caf\xe9"
    assert [*map(octets_of, fields["caf\udce9"])] == [b"\xff"]


def test_field_must_not_extend_beyond_its_table() -> None:
    assert not properties_valid(b"\x20\x40" + table(b"\x01aI\0\0") + bytes(8))
    assert not properties_valid(b"\x20\x40" + table(b"\x01aA" + table(b"I\0\0") + b"\x01bt\0") + bytes(8))


def test_inner_table_must_not_extend_beyond_the_outer_table() -> None:
    inner = b"\x01aF" + struct.pack(">I", 8) + b"\x01bt\x01"
    data = struct.pack(">I", len(inner)) + inner + b"\x01ct\x01"
    with pytest.raises(FieldError):
        decode_table(data, 0, len(data))


def test_tables_may_be_nested_deeply_but_not_too_deeply() -> None:
    array = b"A" + table(b"V")
    for _ in range(TABLE_DEPTH_MAX - 2):
        array = b"A" + table(array)
    for deepest in (nested(TABLE_DEPTH_MAX), table(b"\x01a" + array)):
        assert properties_valid(headers(deepest))
    for too_deep in (nested(TABLE_DEPTH_MAX + 1), nested(10_000), table(b"\x01aA" + table(array))):
        with pytest.raises(TableLimitExceeded, match="nested deeper than 32 levels"):
            check_properties(headers(too_deep))


def test_tables_may_be_large_but_not_too_large() -> None:
    largest = table(b"\x01aS" + table(b"x" * (TABLE_BYTES_MAX - 7)))
    assert properties_valid(headers(largest))
    with pytest.raises(
        TableLimitExceeded, match=f"{TABLE_BYTES_MAX + 1} bytes is larger than {TABLE_BYTES_MAX}"
    ):
        check_properties(headers(table(b"\x01aS" + table(b"x" * (TABLE_BYTES_MAX - 6)))))


def test_headers_are_read_when_those_of_the_broker_are_many() -> None:
    delivered = headers(table(b"\x01aS" + table(b"x" * TABLE_BYTES_MAX)))
    assert decode_properties(delivered).headers == {"a": "x" * TABLE_BYTES_MAX}


def test_arguments_nested_too_deeply_close_the_channel() -> None:
    bind = struct.pack(">I", commands.Queue.Bind.index) + b"\0\0\1q\1x\0\0"
    assert decode_method(bind + nested(TABLE_DEPTH_MAX)).queue == "q"
    with pytest.raises(ChannelError) as caught:
        decode_method(bind + nested(TABLE_DEPTH_MAX + 1))
    assert caught.value.text == (
        "PRECONDITION_FAILED - queue.bind: a field table is nested deeper than 32 levels"
    )
    assert (caught.value.class_id, caught.value.method_id) == (50, 20)


def test_client_properties_nested_too_deeply_end_the_connection() -> None:
    with pytest.raises(
        ConnectionFault, match=r"connection\.startok: a field table is nested deeper"
    ) as caught:
        decode_method(struct.pack(">I", commands.Connection.StartOk.index) + nested(TABLE_DEPTH_MAX + 1))
    assert caught.value.code == ReplyCode.SYNTAX_ERROR


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"\x00",
        b"\x00\x01\x00\x00",  # a second word of flags
        b"\x00\x02",  # a flag without a property
        b"\x80\x00",
        b"\x80\x00\x05abc",
        b"\x00\x00\x00",  # octets without a flag
        b"\x10\x00",
        b"\x00\x40\x00\x00\x00",
    ],
)
def test_wrong_properties_are_refused(properties: bytes) -> None:
    assert not properties_valid(properties)
    assert properties not in valid_properties


def test_a_binary_correlation_id_is_accepted_as_rabbitmq_does() -> None:
    properties = b"\x04\x00\x02\xff\xfe"
    assert properties_valid(properties)
    assert decode_properties(properties).correlation_id == "\ufffd\ufffd"


def test_cache_of_valid_properties_is_bounded() -> None:
    assert properties_valid(headers(table(b"\x01aS" + table(b"x" * 600))))
    for number in range(VALID_PROPERTIES_MAX + 10):
        assert properties_valid(b"\x04\x00\x04" + number.to_bytes(4, "big"))
    assert len(valid_properties) <= VALID_PROPERTIES_MAX
    assert max(map(len, valid_properties)) <= fields.VALID_PROPERTIES_BYTES_MAX


def test_publish_arguments_are_decoded() -> None:
    method = Basic.Publish(exchange="amq.topic", routing_key="a.ü", mandatory=True)
    assert decode_publish(payload(method)) == ("amq.topic", "a.ü", True, False)


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\0\0",
        b"\0\0\x00",
        b"\0\0\x00\x00",
        b"\0\0\x05ab\x00\x00",
        b"\0\0\x00\x05ab\x00",
        b"\0\0\x00\x00\x00\x00",
    ],
)
def test_wrong_publish_arguments_are_a_syntax_error(rest: bytes) -> None:
    with pytest.raises(ConnectionFault, match=r"^SYNTAX_ERROR - cannot decode basic\.publish") as caught:
        decode_publish(b"\0\x3c\0\x28" + rest)
    assert (caught.value.class_id, caught.value.method_id) == (60, 40)


def test_a_table_of_many_fields_is_decoded_in_linear_work() -> None:
    # pamqp copies the rest of the table for each field: 128 KiB would take a second and more.
    data = table(b"\x00V" * 60_000)
    assert decode_table(data, 0, len(data))[0] == {"": None}


def test_headers_made_by_pamqp_are_valid() -> None:
    assert properties_valid(headers(encode.field_table({"x": [1, "a", {"b": None}], "y": 2**40})))
