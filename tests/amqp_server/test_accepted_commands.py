"""Law 1: every node can carry out each accepted command.

Bytes of clients go through a real socket into the broker. Submitted batches go their whole way in a cluster, by the
production code of each step: forward, entry, append, apply, dump and load on a second machine, compaction.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp import commands

from cluster.log.entry import ProposedBatch, batches_of, make_batch, make_entry
from cluster.raft.messages import Append, Forward, LogEntry, decode, encode
from cluster.raft.proposals import ProposalQueue
from qq.errors import ReplyCode
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import decode_commands, decode_kept, messages_of
from qq.machine.protocol.commands import PutUser, PutVhost, SetPermissions
from qq.sessions.login import hash_password
from qq.stored.content import content_of
from qq.tables import TABLE_BYTES_MAX, TABLE_DEPTH_MAX
from tests.harness.lone_broker import NAME, SALT, LoneBroker, LoneGroup
from tests.harness.raw_client import RawClient, frame_bytes, publish

Basic, Chan, Conn, Queue = commands.Basic, commands.Channel, commands.Connection, commands.Queue

REFUSALS = {
    ReplyCode.ACCESS_REFUSED,
    ReplyCode.NOT_FOUND,
    ReplyCode.PRECONDITION_FAILED,
    ReplyCode.FRAME_ERROR,  # a few long names are more than a frame
    ReplyCode.SYNTAX_ERROR,
    ReplyCode.COMMAND_INVALID,
    ReplyCode.NOT_ALLOWED,
    ReplyCode.NOT_IMPLEMENTED,
}
"""Allowed codes for clients: 541 would mean that the broker accepted a command that it cannot carry out."""


class Chain(LoneGroup):
    """A group whose log has a second replica, at the far end of all steps between two nodes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.other = QueueMachine(content_of)
        self.other.adopt(self.other.read(self.machine.dump()))
        self.forwarded = 0

    def _apply(self, sequence: int, payload: Any) -> None:
        try:
            entry = self._arrived(make_batch(NAME, 1, sequence, payload))
            super()._apply(sequence, payload)
            self._apply_elsewhere(self.last_index, entry)
        except Exception as error:  # noqa: BLE001  # the test fails by it
            self.failures.append(error)

    def _arrived(self, batch: ProposedBatch) -> bytes:
        """Return the batch as it is in the log of a peer."""
        forward = decode(b"".join(encode(Forward(1, batch.buffers))))
        assert isinstance(forward, Forward)
        proposals = ProposalQueue()
        proposals.accept(NAME, b"".join(forward.batches))
        entry = make_entry(0, proposals.next_entry(1))
        append = decode(b"".join(encode(Append(1, 0, 0, 0, [LogEntry(entry, 1, 1)]))))
        assert isinstance(append, Append)
        return append.entries[0].payload

    def _apply_elsewhere(self, index: int, entry: bytes) -> None:
        [batch] = batches_of(entry)
        payload = memoryview(entry)[batch.start : batch.end]
        self.other.apply_batch(NAME, index, 0, 0, payload)
        self.other.end_entry(0)
        dump = self.machine.dump()
        assert self.other.dump() == dump
        self.other = QueueMachine(content_of)
        self.other.adopt(self.other.read(dump))
        assert self.other.dump() == dump
        published = sum(map(messages_of, decode_commands(payload)))
        if published:
            decode_kept(self.machine.compact(payload, [(0, published)]))


# --- bytes


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def nested(depth: int, inner: bytes = b"V", kinds: bytes = b"F") -> bytes:
    """Return a nested table of this depth; `kinds` are the types of the inner levels, in turn."""
    value = inner
    for level in range(depth - 1):
        is_array = kinds[level % len(kinds)] == ord("A")
        value = b"A" + sized(value) if is_array else b"F" + sized(b"\1a" + value)
    return sized(b"\1a" + value)


def fixed(kind: bytes, size: int) -> st.SearchStrategy[bytes]:
    extremes = [b"\0" * size, b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), b"\x80" + b"\0" * (size - 1)]
    return st.one_of(st.sampled_from(extremes), st.binary(min_size=size, max_size=size)).map(kind.__add__)


SIZES = {
    "t": 1,
    "b": 1,
    "B": 1,
    "s": 2,
    "u": 2,
    "I": 4,
    "i": 4,
    "l": 8,
    "L": 8,
    "f": 4,
    "d": 8,
    "T": 8,
    "D": 5,
}
texts = st.sampled_from(
    [b"", b"q", b"\0", b"\xff", "é".encode(), b"topic", b"all", b"quorum", b"9" * 20, b"x" * 255, b"y" * 300]
)
leaves = st.one_of(
    st.just(b"V"),
    st.sampled_from(list(SIZES)).flatmap(lambda kind: fixed(kind.encode(), SIZES[kind])),
    st.tuples(st.sampled_from([b"S", b"x"]), texts.map(sized)).map(b"".join),
)
field_names = st.sampled_from(
    [
        *(b"", b"a", b"\xff", b"n" * 255, b"CC", b"BCC", b"x-delay", b"x-publisher-id", b"x-publish-seq"),
        *(b"x-match", b"x-max-length", b"x-message-ttl", b"x-expires", b"x-dead-letter-exchange"),
        *(b"x-dead-letter-routing-key", b"x-queue-type", b"x-max-priority", b"x-priority", b"x-delayed-type"),
        *(b"x-consumer-timeout", b"x-delivery-limit", b"x-delayed-retry-type", b"x-delayed-retry-min"),
        *(b"alternate-exchange", b"hash-header", b"x-overflow", b"x-live-prefetch"),
    ]
)


def containers(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pairs = st.lists(st.tuples(field_names.map(short), inner).map(b"".join), max_size=3).map(b"".join)
    return st.one_of(
        pairs.map(lambda data: b"F" + sized(data)),
        st.lists(inner, max_size=3).map(lambda items: b"A" + sized(b"".join(items))),
    )


values = st.recursive(leaves, containers, max_leaves=6)
LIMIT = TABLE_DEPTH_MAX
DEPTHS = [1, LIMIT - 1, LIMIT, LIMIT + 1, 2 * LIMIT]
large = st.sampled_from([TABLE_BYTES_MAX // 2, TABLE_BYTES_MAX - 400]).flatmap(
    lambda size: st.sampled_from(
        [b"\1aS" + sized(b"s" * size), b"\1aA" + sized(b"V" * size), b"\1aV" * (size // 3)]
    )
)
tables = st.one_of(
    st.lists(st.tuples(field_names.map(short), values).map(b"".join), max_size=4).map(b"".join).map(sized),
    st.builds(nested, st.sampled_from(DEPTHS), leaves, st.sampled_from([b"F", b"AF"])),
    large.map(sized),
)
names = st.one_of(
    st.sampled_from([b"q", b"q", b"dying", b"amq.headers", b"amq.topic", b"x", b""]),
    st.sampled_from([b"\xff", b"\0", b"n" * 255, "ü".encode(), b"a.#.*", b"amq.rabbitmq.reply-to", b"\r\n"]),
).map(short)
octets = st.sampled_from([b"\0", b"\2", b"\1", b"\xff"])
types = st.sampled_from([b"direct", b"headers", b"x-delayed-message", b"x-consistent-hash", b"t" * 255]).map(
    short
)
R = st.just(b"\0\0")


def method(class_id: int, number: int, *parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    head = struct.pack(">HH", class_id, number)
    return st.tuples(*parts).map(lambda fields: frame_bytes(1, 1, head + b"".join(fields)))


def property_list(table: bytes, expiration: bytes, text: bytes, octet: bytes, present: int) -> bytes:
    """Headers, priority, correlation-id, expiration, message-id, timestamp: those that are present."""
    parts = [table, octet, text, expiration, text, b"\xff" * 8]
    flags = [0x2000, 0x0800, 0x0400, 0x0100, 0x0080, 0x0040]
    chosen = [
        (flag, part) for bit, (flag, part) in enumerate(zip(flags, parts, strict=True)) if present >> bit & 1
    ]
    return struct.pack(">H", sum(flag for flag, _ in chosen)) + b"".join(part for _, part in chosen)


EXPIRATIONS = [b"0", b"9", b"", b"-1", b"9" * 30, b"\xff", b"+1"]
properties = st.builds(
    property_list,
    tables,
    st.sampled_from(EXPIRATIONS).map(short),
    texts.filter(lambda text: len(text) < 256).map(short),
    octets,
    st.integers(0, 63),
)
publishes = st.builds(
    lambda key, properties: publish(1, key, b"body", exchange="", properties=properties),
    st.sampled_from(["q", "dying", "n"]),
    properties,
)
methods = st.one_of(
    method(50, 10, R, names, octets, tables),
    method(40, 10, R, names, types, octets, tables),
    method(50, 20, R, names, names, names, octets, tables),
    method(50, 50, R, names, names, names, tables),
    method(40, 30, R, names, names, names, octets, tables),
    method(40, 40, R, names, names, names, octets, tables),
    method(60, 20, R, names, names, octets, tables),
    publishes,
)

# --- the clients


@pytest.fixture(scope="module")
def broker() -> Generator[LoneBroker]:
    with LoneBroker(new_group=Chain) as lone:
        lone.call(lone.broker.leader_changed, NAME, 1)
        with RawClient(lone.amqp_port) as client:
            client.open_channel(1)
            client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
            dead_lettering = {"x-max-length": 0, "x-dead-letter-exchange": "amq.headers"}
            client.call(1, Queue.Declare(queue="dying", arguments=dead_lettering), Queue.DeclareOk)
            client.call(1, Queue.Declare(queue="honest"), Queue.DeclareOk)
            any_header = {"x-match": "any-with-x", "a": None}
            client.call(1, Queue.Bind(queue="q", exchange="amq.headers", arguments=any_header), Queue.BindOk)
        yield lone


@contextlib.contextmanager
def honest(broker: LoneBroker) -> Generator[None]:
    """While something else happens, a client's message is confirmed; it must be there."""
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        yield
        client.write(publish(1, "honest", b"precious"))
        client.expect(Basic.Ack, 1)
        client.send(1, Basic.Get(queue="honest", no_ack=True))
        assert client.expect_message()[2] == b"precious"


def submit(broker: LoneBroker, data: bytes) -> list[ReplyCode]:
    """Send bytes as a client with a single channel; return the codes of the closes in the answer."""
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.open_channel(2)
        client.write(data)
        client.send(2, Queue.Declare(queue="q", passive=True))
        codes: list[ReplyCode] = []
        while True:
            channel, frame = client.receive()
            if isinstance(frame, Chan.Close | Conn.Close):
                codes.append(ReplyCode(frame.reply_code))
            if isinstance(frame, Conn.Close) or (channel == 2 and isinstance(frame, Queue.DeclareOk)):
                return codes


def declaring(name: bytes, table: bytes) -> bytes:
    return frame_bytes(1, 1, b"\0\x32\0\x0a\0\0" + short(name) + b"\2" + table)


@settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
@given(data=st.lists(methods, min_size=1, max_size=4).map(b"".join))
@example(declaring(b"e", nested(LIMIT)))
@example(declaring(b"e", nested(LIMIT, b"A" + sized(b""))))
@example(declaring(b"e", nested(64)))
@example(declaring(b"e", nested(65)))
@example(declaring(b"e", nested(66)))
@example(publish(1, "dying", b"body", properties=b"\x20\0" + nested(LIMIT)))
@example(publish(1, "dying", b"body", properties=b"\x20\0" + nested(65)))
@example(declaring(b"e", sized(b"\1aD\xff\x80\0\0\0\1bD\0\x7f\xff\xff\xff\1cT" + b"\xff" * 8)))
def test_nodes_can_apply_every_method_that_is_accepted(broker: LoneBroker, data: bytes) -> None:
    with honest(broker):
        codes = submit(broker, data)
    assert REFUSALS.issuperset(codes)
    assert broker.group.failures == []


def idle(broker: LoneBroker) -> Callable[[], bool]:
    before = broker.call(lambda: broker.group._sequence)
    return lambda: broker.call(lambda: broker.group._sequence) == before


@pytest.mark.parametrize("depth", [LIMIT, LIMIT + 1, 64, 65])
def test_deepest_headers_are_routed_and_deeper_are_refused(broker: LoneBroker, depth: int) -> None:
    headers = b"\x20\0" + nested(depth)
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Purge(queue="q"), Queue.PurgeOk)
        client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        with honest(broker):
            client.write(publish(1, "dying", b"body", properties=headers))
            if depth > LIMIT:
                text = "headers of the message: a field table is nested deeper than 32 levels"
                client.expect_close(406, f"PRECONDITION_FAILED - {text}", channel=1)
            else:
                client.expect(Basic.Ack, 1)
                broker.pass_some_time()
                client.send(1, Basic.Get(queue="q", no_ack=True))
                assert client.expect_message()[2] == b"body"
        broker.pass_some_time()
        is_idle = idle(broker)
        broker.pass_some_time()
        assert is_idle()
    assert broker.group.failures == []


def test_refused_declaration_costs_no_message_of_a_second_client(broker: LoneBroker) -> None:
    """Passive declarations with arguments of every depth, by a user without permissions, among honest publishers."""
    unprivileged = PutUser("nobody", SALT, hash_password(SALT, b"nobody"), [])
    permissions = SetPermissions("nobody", "elsewhere", "^$", "^$", "^$")
    broker.operate(unprivileged, PutVhost("elsewhere", "", [], ""), permissions)
    publishers, messages, rounds = 6, 20, 30
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.amqp_port)) for _ in range(publishers)]
        for client in clients:
            client.open_channel(1)
            client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for depth in range(LIMIT + 2 - rounds, LIMIT + 2):
            with RawClient(broker.amqp_port, user="nobody", vhost="elsewhere") as hostile:
                hostile.open_channel(1)
                passive = frame_bytes(1, 1, b"\0\x32\0\x0a\0\0\4none\1" + nested(depth))
                for client in clients:
                    client.write(publish(1, "honest", b"precious") * messages)
                hostile.write(passive)
                _, close = hostile.receive()
                assert close.reply_code == (404 if depth <= LIMIT else 406)
        total = rounds * messages
        for client in clients:
            confirmed = 0
            while confirmed < total:
                ack = client.expect(Basic.Ack)
                confirmed = ack.delivery_tag if ack.multiple else confirmed + 1
        counted = clients[0].call(1, Queue.Purge(queue="honest"), Queue.PurgeOk)
    assert counted.message_count == publishers * total
    assert broker.group.failures == []
