import struct
from collections.abc import Iterator
from functools import reduce
from operator import or_

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qq.octets import octets_of
from qq.stored import layout, properties
from qq.stored.editing import content
from qq.stored.fields import VALID_PROPERTIES_MAX, properties_valid
from qq.stored.kept import kept_when_dead
from qq.stored.properties import (
    DURATION_MAX_MS,
    KEYS_MAX,
    NO_PRIORITY,
    NO_TTL,
    REPLY_TO,
    Attributes,
    UnacceptableProperties,
    attributes,
    user_id,
)
from tests.amqp.amqp_wire import Basic, array, long, long_string, message, stored_message

quick = settings(max_examples=2 * settings.default.max_examples, deadline=None, derandomize=True)


def with_header(name: str, value: bytes) -> bytes:
    return stored_message([("other", long_string("x-delay CC")), (name, value)])


def sequenced(publisher: str, sequence: int, **other: bytes) -> bytes:
    return stored_message(
        [("x-publisher-id", long_string(publisher)), ("x-publish-seq", long(sequence))], **other
    )


def refusal(text: str) -> pytest.RaisesExc[UnacceptableProperties]:
    return pytest.RaisesExc(UnacceptableProperties, check=lambda error: str(error) == text)


def group(
    messages: list[bytes], user: str | None = None, reply_name: bytes | None = None
) -> Iterator[tuple[Attributes | None, list[bytes]]]:
    return properties.group(messages, reduce(or_, map(layout.flags, messages), 0), user, reply_name)


@pytest.fixture(autouse=True)
def empty_caches() -> None:
    properties._known.clear()
    properties._known_publishers.clear()
    properties._known_delayed.clear()


# --- single properties and headers


def test_a_message_without_anything_that_matters_is_plain() -> None:
    assert attributes(stored_message()) is None
    assert attributes(stored_message([], content_type=b"CC", user_id=b"me", timestamp=7)) is None
    assert attributes(with_header("delay", long(1))) is None
    assert attributes(stored_message([("CC", array()), ("x-delay", long(0))])) is None
    assert (
        attributes(message(1, b"x" * 100_000, Basic.Properties(headers={"nested": {"x-delay": 1}}))) is None
    )


@pytest.mark.parametrize("priority", [0, 4, 5, 255])
def test_explicit_priority_is_reported_even_if_lowest(priority: int) -> None:
    other = {"content_type": b"text/plain", "correlation_id": b"1"}
    assert attributes(stored_message(priority=priority, **other)) == Attributes(priority=priority)
    assert attributes(stored_message([("a", long(1))], priority=priority)) == Attributes(priority=priority)


@pytest.mark.parametrize(
    ("text", "ttl_ms"),
    [(b"0", 0), (b"1000", 1000), (b"007", 7), (b"+5", 5), (b"315360000000", DURATION_MAX_MS)],
)
def test_an_expiration_is_a_decimal_number(text: bytes, ttl_ms: int) -> None:
    assert attributes(stored_message(expiration=text)) == Attributes(ttl_ms=ttl_ms)
    assert attributes(stored_message([("a", long(1))], expiration=text, priority=1)) == Attributes(
        priority=1, ttl_ms=ttl_ms
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "no_integer"),
        (b"later", "no_integer"),
        (b" 1", "no_integer"),
        (b"-", "no_integer"),
        ("٣".encode(), "no_integer"),
        (b"1.5", '{leftover_string,".5"}'),
        (b"1 ", '{leftover_string," "}'),
        (b'1"\\\n', '{leftover_string,"\\"\\\\\\n"}'),
        (b"10\0\1", "{leftover_string,[0,1]}"),
        (b"-1", "{value_negative,-1}"),
        (b"315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_invalid_expiration_is_refused_with_rabbitmqs_text(text: bytes, fault: str) -> None:
    for _ in range(2):
        with refusal(f"invalid expiration '{text.decode()}': {fault}"):
            attributes(stored_message(expiration=text))


def test_an_expiration_may_be_any_octets() -> None:
    with refusal("invalid expiration '1\udcff': {leftover_string,\"ÿ\"}"):
        attributes(stored_message(expiration=b"1\xff"))
    with pytest.raises(UnacceptableProperties):
        attributes(stored_message(expiration=b"9" * 255))


def test_cc_and_bcc_are_more_routing_keys() -> None:
    both = [("BCC", array(long_string("c"))), ("CC", array(long_string("a"), long_string("b")))]
    assert attributes(stored_message(both)) == Attributes(more_keys=("a", "b", "c"))


def test_keys_that_are_not_strings_are_skipped_as_in_rabbitmq() -> None:
    mixed = array(long(1), long_string("a"), array(long_string("no")), b"V", long_string(""), b"t\x01")
    assert attributes(with_header("CC", mixed)) == Attributes(more_keys=("a", ""))


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (long_string("a"), "longstr"),
        (long(1), "long"),
        (b"V", "void"),
        (b"t\0", "bool"),
        (b"F\0\0\0\0", "table"),
        (b"I\0\0\0\1", "signedint"),
        (b"D\1\0\0\0\1", "decimal"),
        (b"x\0\0\0\0", "binary"),
    ],
)
def test_keys_that_are_no_array_are_refused_with_its_text(name: str, value: bytes, kind: str) -> None:
    with refusal(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}'):
        attributes(with_header(name, value))


def test_octets_of_more_routing_keys_survive() -> None:
    found = attributes(with_header("CC", array(long_string(b"caf\xe9"))))
    assert found is not None
    assert [*map(octets_of, found.more_keys)] == [b"caf\xe9"]


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        (long(5000), 5000),
        (long(DURATION_MAX_MS), DURATION_MAX_MS),
        (b"b\x7f", 127),
        (b"B\xff", 255),
        (b"s\x7f\xff", 32767),
        (b"u\xff\xff", 65535),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (long_string("5000"), 5000),
        (long_string("+5"), 5),
        (b"x\0\0\0\x0250", 50),
        (b"d" + struct.pack(">d", 1500.7), 1500),
        (b"f" + struct.pack(">f", 2.0), 2),
    ],
)
def test_a_delay_is_a_number_in_any_form_that_clients_send(value: bytes, delay_ms: int) -> None:
    assert attributes(with_header("x-delay", value)) == Attributes(delay_ms=delay_ms)


@pytest.mark.parametrize(
    "value",
    [long(0), long(-5), b"b\xff", long_string("0"), long_string("-7"), b"d" + struct.pack(">d", -0.5)],
)
def test_delay_of_zero_or_less_is_no_delay(value: bytes) -> None:
    assert attributes(with_header("x-delay", value)) is None


@pytest.mark.parametrize(
    "value",
    [
        long_string(""),
        long_string("5s"),
        long_string("1" * 1000),
        long_string(b"\xff"),
        b"t\1",
        b"V",
        array(),
        b"d" + struct.pack(">d", float("nan")),
        b"d" + struct.pack(">d", float("inf")),
        b"D\0\0\0\0\1",
        b"T" + bytes(8),
        long(DURATION_MAX_MS + 1),
    ],
)
def test_invalid_delay_is_ignored(value: bytes) -> None:
    message = with_header("x-delay", value)
    assert list(group([message])) == [(None, [message])]
    [(found, [shown])] = group([stored_message([("x-delay", value)], priority=1)])
    assert (found, shown) == (Attributes(priority=1), stored_message([("x-delay", value)], priority=1))


@pytest.mark.parametrize("sequence", [1, 2, 2**63 - 1])
def test_publisher_id_and_sequence_number_must_come_together(sequence: int) -> None:
    for publisher in ("p", "ü" * 127):
        assert attributes(sequenced(publisher, sequence)) == Attributes(
            publisher=publisher, publish_seq=sequence
        )
    with refusal("header 'x-publisher-id' without header 'x-publish-seq'"):
        attributes(with_header("x-publisher-id", long_string("p")))
    with refusal("header 'x-publish-seq' without header 'x-publisher-id'"):
        attributes(with_header("x-publish-seq", long(sequence)))


@pytest.mark.parametrize(
    "value",
    [long_string(""), long_string("p" * 256), long_string(b"\xff"), long(1), b"V", array(long_string("p"))],
)
def test_invalid_publisher_id_is_refused(value: bytes) -> None:
    with refusal("invalid header 'x-publisher-id': not a string of 1 to 255 octets of UTF-8"):
        attributes(stored_message([("x-publisher-id", value), ("x-publish-seq", long(1))]))


@pytest.mark.parametrize(
    "value", [long(0), long(-1), b"L" + b"\xff" * 8, b"b\0", b"t\1", long_string("1"), b"V", b"d" + bytes(8)]
)
@pytest.mark.parametrize("known", [False, True])
def test_invalid_sequence_number_of_a_known_publisher_is_refused(value: bytes, known: bool) -> None:
    if known:
        for layout in (long(1), b"L" + bytes(7) + b"\1", b"b\1"):
            assert attributes(
                stored_message([("x-publisher-id", long_string("p")), ("x-publish-seq", layout)])
            ) == Attributes(publisher="p", publish_seq=1)
    with refusal("invalid header 'x-publish-seq': not an integer from 1 to 2^63-1"):
        attributes(stored_message([("x-publisher-id", long_string("p")), ("x-publish-seq", value)]))


def test_first_of_two_headers_with_the_same_name_counts() -> None:
    twice = [("x-delay", long(1)), ("x-delay", long(2)), ("x-delay", b"V")]
    assert attributes(stored_message(twice)) == Attributes(delay_ms=1)


def test_names_inside_of_values_are_nobodys_headers() -> None:
    name = b"\x0dx-publish-seq"
    similar = long_string(name + long(9))
    headers = [("a", similar), ("x-publisher-id", long_string("p")), ("x-publish-seq", long(1))]
    for sequence in (1, 2):
        headers[2] = ("x-publish-seq", long(sequence))
        assert attributes(stored_message(headers)) == Attributes(publisher="p", publish_seq=sequence)
    headers[0] = ("a", long_string(name + long(10)))
    assert attributes(stored_message(headers)) == Attributes(publisher="p", publish_seq=2)
    # The name is the very end of the properties.
    assert attributes(stored_message([], priority=1, correlation_id=name)) == Attributes(priority=1)
    assert attributes(stored_message([("x-delay", long(3))], cluster_id=name)) == Attributes(delay_ms=3)


def test_user_id_is_found_after_all_further_properties() -> None:
    assert user_id(stored_message()) is None
    assert user_id(stored_message(user_id=b"me")) == "me"
    other = {"content_type": b"text/plain", "priority": 3, "expiration": b"1", "timestamp": 5}
    assert user_id(stored_message([("a", long(1))], user_id=b"\xff", cluster_id=b"c", **other)) == "\udcff"


# --- any properties, against a reader of decoded properties

OURS = ["CC", "BCC", "x-delay", "x-publisher-id", "x-publish-seq"]
values = st.recursive(
    st.one_of(
        st.integers(-3, 2**40).map(long),
        st.sampled_from([b"V", b"t\1", b"b\3", b"d" + struct.pack(">d", 2.5), b"T" + bytes(8)]),
        st.sampled_from(["5", "a", "", "CC", "x-delay"]).map(long_string),
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: array(*items)),
)
headers = st.lists(
    st.tuples(st.sampled_from([*OURS, "CC", "x-delay", "x-other", "c"]), values),
    max_size=5,
    unique_by=lambda pair: pair[0],
)
messages = st.builds(
    lambda pairs, other: stored_message(pairs, **other),
    st.none() | headers,
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.just(b"text/plain"),
            "priority": st.integers(0, 255),
            "expiration": st.sampled_from([b"0", b"60000", b"x", b"-1"]),
            "reply_to": st.sampled_from([REPLY_TO, b"queue", REPLY_TO + b".name"]),
            "user_id": st.sampled_from([b"me", b"you"]),
            "timestamp": st.just(1),
        },
    ),
)


def simply_read(one: bytes) -> Attributes | None:
    """Return the attributes from decoded properties; None if they are invalid."""
    decoded = content(one).properties
    table = decoded.headers or {}
    for name in ("CC", "BCC"):
        if name in table and not isinstance(table[name], list):
            return None
    keys = [key for name in ("CC", "BCC") for key in table.get(name, []) if isinstance(key, str)]
    delay = table.get("x-delay", 0)
    if isinstance(delay, str) and delay.isdecimal():
        delay = int(delay)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or delay > DURATION_MAX_MS:
        delay = 0
    publisher, sequence = table.get("x-publisher-id", ""), table.get("x-publish-seq", 0)
    if ("x-publisher-id" in table or "x-publish-seq" in table) and not (
        isinstance(publisher, str) and publisher and type(sequence) is int and sequence > 0
    ):
        return None
    ttl = decoded.expiration or "0" if decoded.expiration is not None else str(NO_TTL)
    if not ttl.isdecimal():
        return None
    priority = NO_PRIORITY if decoded.priority is None else decoded.priority
    return Attributes(tuple(keys), priority, int(ttl), max(0, int(delay)), publisher, sequence)


@quick
@given(st.lists(messages, max_size=4))
def test_attributes_equal_the_decoded_properties(some: list[bytes]) -> None:
    for one in [*some, *some]:
        header_stop = 8 + struct.unpack_from(">I", one, 3)[0]
        assert properties_valid(one[19 : header_stop - 1])
        expected = simply_read(one)
        if expected is None:
            with pytest.raises(UnacceptableProperties):
                attributes(one)
        else:
            assert (attributes(one) or Attributes()) == expected


def test_caches_of_properties_are_bounded() -> None:
    for number in range(VALID_PROPERTIES_MAX + 10):
        assert attributes(stored_message(priority=1, correlation_id=b"%d" % number)) == Attributes(priority=1)
        assert attributes(sequenced("p", 1, correlation_id=b"%d" % number)) is not None
        delayed = stored_message([("x-delay", long(1))], correlation_id=b"%d" % number)
        assert len(list(group([delayed]))) == 1
    assert len(properties._known) <= VALID_PROPERTIES_MAX
    assert len(properties._known_publishers) <= VALID_PROPERTIES_MAX
    assert 0 < len(properties._known_delayed) <= VALID_PROPERTIES_MAX
    long_ones = stored_message([("a", long_string("x" * 600))], priority=1)
    assert attributes(long_ones) == Attributes(priority=1)
    assert len(long_ones[19:]) > max(map(len, properties._known))


# --- groups

NAME = REPLY_TO + b".a-channel"


def test_plain_messages_are_grouped_without_a_copy() -> None:
    plain = [stored_message(), stored_message(content_type=b"a", user_id=b"me")]
    [(found, alike)] = group(plain)
    assert found is None
    assert alike is plain


def test_consecutive_messages_with_equal_attributes_are_grouped() -> None:
    plain, high = stored_message([("a", long(1))]), stored_message(priority=9)
    named = stored_message(priority=9, correlation_id=b"1")
    assert list(group([plain, plain, high, named, high, plain])) == [
        (None, [plain, plain]),
        (Attributes(priority=9), [high, named, high]),
        (None, [plain]),
    ]


def test_consecutive_numbers_of_a_publisher_are_grouped() -> None:
    numbers = [("p", 1), ("p", 2), ("p", 3), ("p", 5), ("q", 6), ("q", 6), ("p", 7)]
    sent = [sequenced(*number) for number in numbers]
    assert [(found, len(alike)) for found, alike in group(sent)] == [
        (Attributes(publisher="p", publish_seq=1), 3),
        (Attributes(publisher="p", publish_seq=5), 1),
        (Attributes(publisher="q", publish_seq=6), 1),
        (Attributes(publisher="q", publish_seq=6), 1),
        (Attributes(publisher="p", publish_seq=7), 1),
    ]


def test_bcc_is_not_stored() -> None:
    cc, bcc = ("CC", array(long_string("a"))), ("BCC", array(long_string("b")))
    other = ("x-other", b"V")
    [(found, alike)] = group([stored_message([other, bcc, cc]), stored_message([bcc, other, bcc, cc])])
    assert found == Attributes(more_keys=("a", "b"))
    assert alike == [stored_message([other, cc])] * 2
    hidden = stored_message([("CC", array(long_string("\x03BCC")))])
    assert list(group([hidden])) == [(Attributes(more_keys=("\x03BCC",)), [hidden])]


def test_delay_header_of_a_delayed_message_is_stored_negated() -> None:
    other, bcc = ("x-other", b"V"), ("BCC", array(long_string("b")))
    for value in (long(5), b"I\0\0\0\5", b"B\5", long_string("5"), b"d" + struct.pack(">d", 5.5)):
        sent = stored_message([("x-delay", value), other, ("x-delay", long(9)), bcc], priority=1)
        [(found, alike)] = group([sent, sent])
        assert found == Attributes(("b",), 1, delay_ms=5)
        assert alike == [stored_message([other, ("x-delay", long(-5))], priority=1)] * 2
        assert attributes(alike[0]) == Attributes(priority=1)
    longest = stored_message([("x-delay", b"i" + b"\xff" * 4)])
    [(_, alike)] = group([longest])
    assert alike == [stored_message([("x-delay", long(1 - 2**32))])]


def test_a_delay_may_be_longer_than_this_exchange_knows() -> None:
    short, too_long = stored_message([("x-delay", long(7))]), stored_message([("x-delay", long(8))])
    high = stored_message([("x-delay", long(8))], priority=9)
    messages = [too_long, stored_message(), short, high]
    flags = reduce(or_, map(layout.flags, messages))
    assert list(properties.group(messages, flags, delay_max_ms=7)) == [
        (None, [too_long, stored_message()]),
        (Attributes(delay_ms=7), [stored_message([("x-delay", long(-7))])]),
        (Attributes(priority=9), [high]),
    ]


def test_stored_message_still_gives_keys_expiration_and_priority() -> None:
    assert kept_when_dead(stored_message()) == ([], "", NO_PRIORITY)
    both = [("CC", array(long_string("a"))), ("BCC", array(long_string("b")))]
    [(_, [stored])] = group([stored_message(both, expiration=b"007")])
    assert kept_when_dead(stored) == (["a"], "7", NO_PRIORITY)
    assert kept_when_dead(stored_message(both, expiration=b"x")) == ([], "", NO_PRIORITY)
    [(_, [stored])] = group([stored_message(priority=9)])
    assert kept_when_dead(stored) == ([], "", 9)


@pytest.mark.parametrize("other", [{}, {"priority": 1, "expiration": b"5", "timestamp": 1, "user_id": b"me"}])
def test_reply_to_is_replaced_with_the_channels_reply_name(other: dict[str, bytes | int]) -> None:
    def sent(reply_to: bytes, correlation_id: bytes) -> bytes:
        headers = [("a", long_string("amq.rabbitmq.reply-to"))]
        return stored_message(headers, reply_to=reply_to, correlation_id=correlation_id, **other)

    requests = [sent(REPLY_TO, b"1"), sent(REPLY_TO, b"1"), sent(b"queue", b"2"), sent(REPLY_TO, b"2")]
    [(_, alike)] = group(requests, "me", NAME)
    assert alike == [sent(NAME, b"1"), sent(NAME, b"1"), sent(b"queue", b"2"), sent(NAME, b"2")]


def test_direct_reply_to_is_refused_without_a_reply_consumer() -> None:
    plain = stored_message(reply_to=b"queue")
    groups = group([plain, stored_message(), stored_message(reply_to=REPLY_TO, expiration=b"x")])
    assert next(groups) == (None, [plain, stored_message()])
    with refusal("fast reply consumer does not exist"):
        next(groups)


def test_messages_before_an_invalid_message_are_grouped() -> None:
    plain, wrong = stored_message(), stored_message(expiration=b"x")
    groups = group([plain, plain, wrong, plain])
    assert next(groups) == (None, [plain, plain])
    with refusal("invalid expiration 'x': no_integer"):
        next(groups)
    with refusal("invalid expiration 'x': no_integer"):
        list(group([wrong]))


def test_user_id_must_match_the_authenticated_user() -> None:
    without, mine, foreign = (
        stored_message(priority=1),
        stored_message(user_id=b"me"),
        stored_message(user_id=b"you"),
    )
    assert [len(alike) for _, alike in group([mine, mine], "me")] == [2]
    assert [len(alike) for _, alike in group([without, mine, foreign])] == [1, 2]
    text = "user_id property set to 'you' but authenticated user was 'me'"
    for before in (without, mine):
        groups = group([before, before, foreign], "me")
        assert len(next(groups)[1]) == 2
        with refusal(text):
            next(groups)
    with refusal("invalid expiration 'x': no_integer"):
        list(group([stored_message(user_id=b"you", expiration=b"x")], "me"))


@quick
@given(st.lists(messages, max_size=6), st.sampled_from([None, "me"]), st.sampled_from([None, NAME]))
@example([sequenced("p", 1), sequenced("p", 2)], None, None)
@example([stored_message([("BCC", array())])] * 2, None, None)
def test_groups_are_maximal_and_complete(some: list[bytes], user: str | None, name: bytes | None) -> None:
    right = 0
    for one in some:
        if simply_read(one) is None or user_id(one) not in (None, user or user_id(one)):
            break
        if name is None and content(one).properties.reply_to == REPLY_TO.decode():
            break
        right += 1
    groups: list[tuple[Attributes | None, list[bytes]]] = []
    try:
        for found, alike in group(some, user, name):
            groups.append((found, alike))
    except UnacceptableProperties:
        assert right < len(some)
    else:
        assert right == len(some)
    assert sum(len(alike) for _, alike in groups) == right
    for one, kept in zip(some, [one for _, alike in groups for one in alike], strict=False):
        before, after = content(one), content(kept)
        assert after.body == before.body
        if before.properties.reply_to == REPLY_TO.decode():
            assert name is not None
            before.properties.reply_to = name.decode()
        if "BCC" in (before.properties.headers or {}):
            del before.properties.headers["BCC"]
        if delay_ms := (simply_read(one) or Attributes()).delay_ms:
            before.properties.headers["x-delay"] = -delay_ms
        assert after.properties == before.properties
    at = 0
    for found, alike in groups:
        expected = [simply_read(one) for one in some[at : at + len(alike)]]
        at += len(alike)
        first = found or Attributes()
        step = 1 if first.publisher else 0
        assert expected == [
            first._replace(publish_seq=first.publish_seq + step * place) for place in range(len(alike))
        ]
        if at < right:
            following = simply_read(some[at])
            assert following != first._replace(publish_seq=first.publish_seq + step * len(alike))


def test_routing_keys_of_a_message_are_limited() -> None:
    keys = [long_string(str(number)) for number in range(KEYS_MAX)]
    found = attributes(with_header("CC", array(*keys)))
    assert found is not None
    assert len(found.more_keys) == KEYS_MAX
    with refusal("257 routing keys in the headers CC and BCC, above the limit (256)"):
        attributes(stored_message([("CC", array(*keys)), ("BCC", array(long_string("one more")))]))
