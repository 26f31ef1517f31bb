"""Permissions: the needs of each method, the text of a refusal, and the time at which a change takes effect."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import NamedTuple

import pytest
from pamqp import commands
from pamqp.base import Frame

from qq.machine.protocol.commands import (
    ClearPermissions,
    ClearTopicPermissions,
    Command,
    DeclareExchange,
    DeclareQueue,
    PutUser,
    SetPermissions,
    SetTopicPermissions,
)
from qq.sessions import access
from qq.sessions.login import hash_password
from tests.harness.lone_broker import SALT, LoneBroker
from tests.harness.raw_client import RawClient, frame_bytes, marshal, publish

Basic, Exchange, Queue, Tx = commands.Basic, commands.Exchange, commands.Queue, commands.Tx
Confirm, Flow = commands.Confirm, commands.Channel.Flow
Needed = tuple[str, str, str]
"""Permission, and kind and name of its object."""
PASSWORD = hash_password(SALT, b"anna")


def permissions(configure: str = "", write: str = "", read: str = "", user: str = "anna") -> SetPermissions:
    return SetPermissions(user, "/", configure, write, read)


def topics(write: str, read: str, exchange: str = "t", user: str = "anna") -> SetTopicPermissions:
    return SetTopicPermissions(user, "/", exchange, write, read)


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    """A broker with the queue q, the exchanges x, y (direct) and t (topic), and anna without permissions."""
    with LoneBroker() as broker:
        exchanges = [
            DeclareExchange(1000, name, kind, False, True, False, False, {})
            for name, kind in (("x", "direct"), ("y", "direct"), ("t", "topic"))
        ]
        queue = DeclareQueue(1000, 1000, "q", False, True, False, False, False, {})
        broker.operate(PutUser("anna", SALT, PASSWORD, []), permissions(), queue, *exchanges)
        yield broker


class Client(RawClient):
    def __init__(self, broker: LoneBroker, user: str = "anna") -> None:
        super().__init__(broker.amqp_port, user=user)
        self.open_channel(1)

    def probe(self) -> None:
        """Assert that channel 1 is open."""
        self.call(1, Tx.Select(), Tx.SelectOk)

    def expect_refused(self, text: str, method: tuple[int, int], channel: int = 1) -> None:
        close = self.expect(commands.Channel.Close, channel)
        assert (close.reply_code, close.reply_text) == (403, f"ACCESS_REFUSED - {text}")
        assert (close.class_id, close.method_id) == method
        self.send(channel, commands.Channel.CloseOk())
        self.open_channel(channel)


@pytest.fixture
def client(broker: LoneBroker) -> Generator[Client]:
    with Client(broker) as client:
        yield client


def granted(needed: Sequence[Needed]) -> SetPermissions:
    """Just these."""
    patterns = {
        permission: "|".join(f"^{re.escape(name)}$" for wanted, _, name in needed if wanted == permission)
        for permission in ("configure", "write", "read")
    }
    return permissions(**patterns)


def refusal(needed: Needed, user: str = "anna") -> str:
    permission, kind, name = needed
    return f"{permission} access to {kind} '{name}' in vhost '/' refused for user '{user}'"


class Row(NamedTuple):
    sent: Frame | bytes
    needed: list[Needed]
    """In the order of their checks."""
    method: tuple[int, int]


def queue(permission: str, name: str = "q") -> Needed:
    return permission, "queue", name


def exchange(permission: str, name: str) -> Needed:
    return permission, "exchange", name


def line_ends(sent: Frame) -> bytes:
    """With a line end for each @: the codec of the tests takes no names with any."""
    return marshal(1, sent).replace(b"@", b"\n")


DLX = "x-dead-letter-exchange"
TABLE = {
    "declare": Row(Queue.Declare(queue="new"), [queue("configure", "new")], (50, 10)),
    "declare again": Row(Queue.Declare(queue="q", durable=True), [queue("configure")], (50, 10)),
    "declare, line end": Row(Queue.Declare(queue="ne@@w"), [queue("configure", "new")], (50, 10)),
    "declare, dead letters": Row(
        Queue.Declare(queue="new", arguments={DLX: "x"}),
        [queue("configure", "new"), queue("read", "new"), exchange("write", "x")],
        (50, 10),
    ),
    "declare, dead letters to queues": Row(
        Queue.Declare(queue="new", arguments={DLX: ""}),
        [queue("configure", "new"), queue("read", "new"), exchange("write", "amq.default")],
        (50, 10),
    ),
    "delete": Row(Queue.Delete(queue="q"), [queue("configure")], (50, 40)),
    "delete, line end": Row(Queue.Delete(queue="q@"), [queue("configure")], (50, 40)),
    "delete, not there": Row(Queue.Delete(queue="none"), [queue("configure", "none")], (50, 40)),
    "purge": Row(Queue.Purge(queue="q"), [queue("read")], (50, 30)),
    "get": Row(Basic.Get(queue="q"), [queue("read")], (60, 70)),
    "consume": Row(Basic.Consume(queue="q"), [queue("read")], (60, 20)),
    "publish": Row(publish(1, "k", b"", exchange="x"), [exchange("write", "x")], (60, 40)),
    "publish to a queue": Row(publish(1, "q", b""), [exchange("write", "amq.default")], (60, 40)),
    "bind": Row(
        Queue.Bind(queue="q", exchange="x", routing_key="k"),
        [queue("write"), exchange("read", "x")],
        (50, 20),
    ),
    "bind, line ends": Row(
        Queue.Bind(queue="q@", exchange="x@", routing_key="k"),
        [queue("write"), exchange("read", "x")],
        (50, 20),
    ),
    "unbind": Row(
        Queue.Unbind(queue="q", exchange="x", routing_key="k"),
        [queue("write"), exchange("read", "x")],
        (50, 50),
    ),
    "declare exchange": Row(Exchange.Declare(exchange="new"), [exchange("configure", "new")], (40, 10)),
    "declare exchange again": Row(
        Exchange.Declare(exchange="x", durable=True), [exchange("configure", "x")], (40, 10)
    ),
    "declare exchange, alternate": Row(
        Exchange.Declare(exchange="new", arguments={"alternate-exchange": "x"}),
        [exchange("configure", "new"), exchange("read", "new"), exchange("write", "x")],
        (40, 10),
    ),
    "delete exchange": Row(Exchange.Delete(exchange="x"), [exchange("configure", "x")], (40, 20)),
    "bind exchange": Row(
        Exchange.Bind(destination="y", source="x", routing_key="k"),
        [exchange("write", "y"), exchange("read", "x")],
        (40, 30),
    ),
    "unbind exchange": Row(
        Exchange.Unbind(destination="y", source="x", routing_key="k"),
        [exchange("write", "y"), exchange("read", "x")],
        (40, 40),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_method_needs_exactly_its_permissions(broker: LoneBroker, client: Client, name: str) -> None:
    sent, needed, method = TABLE[name]
    data = sent if isinstance(sent, bytes) else line_ends(sent)
    for missing in needed:
        broker.operate(granted([other for other in needed if other != missing]))
        client.write(data)
        client.expect_refused(refusal(missing), method)
    broker.operate(granted(needed))
    client.write(data)
    if isinstance(sent, bytes):
        client.probe()
    else:
        channel, answer = client.receive()
        assert channel == 1
        assert answer.name in {f"{sent.name}Ok", "Basic.GetEmpty"}


@pytest.mark.parametrize(
    ("there", "deletion"),
    [
        (Queue.Declare(queue="q", passive=True), Queue.Declare(queue="gone", passive=True)),
        (Exchange.Declare(exchange="x", passive=True), Exchange.Declare(exchange="gone", passive=True)),
    ],
)
def test_passive_declare_needs_only_access_to_the_virtual_host(
    broker: LoneBroker, client: Client, there: Frame, deletion: Frame
) -> None:
    broker.operate(granted([]))
    client.send(1, there)
    assert client.receive()[1].name == f"{there.name}Ok"
    client.send(1, deletion)
    thing = deletion.name.partition(".")[0].lower()
    client.expect_close(404, f"NOT_FOUND - no {thing} 'gone' in vhost '/'", channel=1)


def test_repeated_declare_needs_no_dead_letter_permissions(broker: LoneBroker, client: Client) -> None:
    declare = Queue.Declare(queue="dying", arguments={DLX: "x"})
    with Client(broker, "guest") as operator:
        operator.call(1, declare, Queue.DeclareOk)
    broker.operate(permissions(configure="^dying$"))
    client.call(1, declare, Queue.DeclareOk)
    client.send(1, Queue.Declare(queue="dying", arguments={DLX: "y"}))
    client.expect_refused(refusal(queue("read", "dying")), (50, 10))


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (Exchange.Declare(exchange=""), "operation not permitted on the default exchange"),
        (Exchange.Declare(exchange="", passive=True), "operation not permitted on the default exchange"),
        (Exchange.Delete(exchange=""), "operation not permitted on the default exchange"),
        (
            Exchange.Delete(exchange="amq.direct"),
            "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
        ),
    ],
)
def test_operation_forbidden_to_all_is_refused_with_its_reason(
    client: Client, sent: Frame, text: str
) -> None:
    client.send(1, sent)
    client.expect_refused(text, (sent.index >> 16, sent.index & 0xFFFF))


def test_binding_from_the_default_exchange_needs_write_first(broker: LoneBroker, client: Client) -> None:
    bind = Queue.Bind(queue="q", exchange="", routing_key="q")
    client.send(1, bind)
    client.expect_refused(refusal(queue("write")), (50, 20))
    broker.operate(permissions(write="q"))
    client.send(1, bind)
    client.expect_refused("operation not permitted on the default exchange", (50, 20))


def test_empty_queue_name_means_the_last_declared_queue(broker: LoneBroker, client: Client) -> None:
    for sent, method in (
        (Queue.Purge(queue=""), (50, 30)),
        (Basic.Get(queue=""), (60, 70)),
        (Basic.Consume(queue=""), (60, 20)),
    ):
        broker.operate(permissions(configure="^q$"))
        client.call(1, Queue.Declare(queue="q", durable=True), Queue.DeclareOk)
        client.send(1, sent)
        client.expect_refused(refusal(queue("read")), method)
    client.call(1, Queue.Declare(queue="q", durable=True), Queue.DeclareOk)
    client.write(line_ends(Queue.Bind(queue="@", exchange="x")))
    client.expect_refused(refusal(queue("write")), (50, 20))
    for sent in (Queue.Purge(queue=""), Queue.Bind(queue="", exchange="x")):
        client.send(1, sent)
        client.expect_close(404, "NOT_FOUND - no previously declared queue", channel=1)
        client.send(1, commands.Channel.CloseOk())
        client.open_channel(1)


def test_generated_queue_name_needs_permission_too(broker: LoneBroker, client: Client) -> None:
    broker.operate(permissions(configure="^amq\\.gen-[-_a-zA-Z0-9]{22}$"))
    assert client.call(1, Queue.Declare(), Queue.DeclareOk).queue.startswith("amq.gen-")
    client.write(line_ends(Queue.Declare(queue="@")))
    assert client.expect(Queue.DeclareOk).queue.startswith("amq.gen-")
    broker.operate(permissions(configure="^q"))
    client.send(1, Queue.Declare())
    close = client.expect(commands.Channel.Close)
    assert re.fullmatch(
        r"ACCESS_REFUSED - configure access to queue 'amq\.gen-\S{22}' in vhost '/' refused for user 'anna'",
        close.reply_text,
    )


@pytest.mark.parametrize(
    ("pattern", "is_permitted"),
    [("", False), (".*", True), ("q", True), ("^r|q", True), ("Q", False), ("(?i)Q", True), ("(", False)],
)
def test_patterns_are_searched_for_as_in_rabbitmq(
    broker: LoneBroker, client: Client, pattern: str, is_permitted: bool
) -> None:
    broker.operate(permissions(read=pattern))
    client.send(1, Basic.Get(queue="q"))
    if is_permitted:
        client.expect(Basic.GetEmpty)
    else:
        client.expect_refused(refusal(queue("read")), (60, 70))


# When a change counts


def test_a_change_counts_for_the_next_method_of_an_open_channel(broker: LoneBroker, client: Client) -> None:
    to_x = publish(1, "k", b"", exchange="x")
    for _ in range(3):
        broker.operate(permissions(write="x", read="q"))
        client.write(to_x + to_x)
        client.call(1, Basic.Get(queue="q"), Basic.GetEmpty)
        broker.operate(permissions())
        client.write(to_x)
        client.expect_refused(refusal(exchange("write", "x")), (60, 40))
        client.send(1, Basic.Get(queue="q"))
        client.expect_refused(refusal(queue("read")), (60, 70))
    broker.operate(permissions(read="q"))
    client.call(1, Basic.Get(queue="q"), Basic.GetEmpty)
    broker.operate(ClearPermissions("anna", "/"))
    client.send(1, Basic.Get(queue="q"))
    client.expect_refused(refusal(queue("read")), (60, 70))


def test_consumer_continues_after_its_read_permission_is_revoked(broker: LoneBroker, client: Client) -> None:
    broker.operate(permissions(read="q", write="amq.default"))
    client.call(1, Basic.Consume(queue="q", consumer_tag="c"), Basic.ConsumeOk)
    broker.operate(permissions(write="amq.default"))
    client.write(publish(1, "q", b"m"))
    assert client.expect_message()[2] == b"m"


def test_refusal_waits_for_permissions_granted_at_other_nodes(broker: LoneBroker, client: Client) -> None:
    """Later methods of the client are carried out after it, once and in order."""
    broker.group.holding = True
    client.send(1, Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
    bodies = [b"%d" % number for number in range(20)]
    client.write(b"".join(publish(1, "q", body) for body in bodies))
    client.send(1, Queue.Purge(queue="none"))
    with pytest.raises(TimeoutError):
        client.receive(0.2)
    broker.learn(permissions(write="amq.default", read=".*"))
    broker.call(broker.group.release)
    client.expect(Basic.ConsumeOk)
    close = None
    got: list[bytes] = []
    while close is None or len(got) < len(bodies):
        _, frame = client.receive()
        if isinstance(frame, commands.Channel.Close):
            close = frame
            break
        if isinstance(frame, Basic.Deliver):
            client.receive()
            got.append(client.receive()[1].value)
    assert got == bodies[: len(got)]
    assert close is not None
    assert close.reply_text == "NOT_FOUND - no queue 'none' in vhost '/'"


def test_each_refusal_waits_for_itself(broker: LoneBroker, client: Client) -> None:
    for name in ("a", "b", "c"):
        broker.group.holding = True
        client.send(1, Queue.Declare(queue=name))
        with pytest.raises(TimeoutError):
            client.receive(0.1)
        broker.learn(permissions(configure=f"^{name}$"))
        broker.call(broker.group.release)
        client.expect(Queue.DeclareOk)


def test_commands_behind_a_refusal_are_dropped_with_the_channel(broker: LoneBroker, client: Client) -> None:
    broker.operate(permissions(read="q"))
    client.send(1, Queue.Delete(queue="q"), Basic.Get(queue="q"), commands.Channel.Close(200, "", 0, 0))
    client.expect_close(403, "ACCESS_REFUSED - " + refusal(queue("configure")), channel=1)
    client.expect(commands.Channel.CloseOk)
    client.open_channel(2)
    client.call(2, Basic.Get(queue="q"), Basic.GetEmpty)


def test_method_of_a_disconnected_client_is_not_carried_out(broker: LoneBroker) -> None:
    with Client(broker) as client:
        broker.group.holding = True
        client.send(1, Queue.Delete(queue="q"))
        broker.pass_some_time()
    broker.learn(permissions(configure="q"))
    while broker.call(lambda: len(broker.broker.connections)):
        pass
    broker.call(broker.group.release)
    broker.pass_some_time()
    assert "q" in broker.machine.vhosts["/"].queues


# Topic permissions


def with_keys(body: bytes, routing_key: str = "a", exchange: str = "t", **headers: list[str]) -> bytes:
    """A message with the headers CC or BCC."""
    table = b""
    for name, keys in headers.items():
        values = b"".join(b"S" + len(key).to_bytes(4, "big") + key.encode() for key in keys)
        table += bytes([len(name)]) + name.encode() + b"A" + len(values).to_bytes(4, "big") + values
    properties = b"\x20\0" + len(table).to_bytes(4, "big") + table
    return publish(1, routing_key, body, exchange=exchange, properties=properties)


def topic_refusal(key: str, permission: str = "write", exchange: str = "t") -> str:
    place = f"topic '{key}' in exchange '{exchange}' in vhost '/'"
    return f"{permission} access to {place} refused for user 'anna'"


@pytest.fixture
def topic_client(broker: LoneBroker, client: Client) -> Client:
    """Anna may do all, but publish to t with keys that begin with a and bind to it with keys that begin with b."""
    broker.operate(permissions(".*", ".*", ".*"), topics("^a", "^b"))
    client.call(1, Queue.Bind(queue="q", exchange="t", routing_key="b"), Queue.BindOk)
    return client


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        (with_keys(b"", "z"), "z"),
        (publish(1, "z", b"", exchange="t"), "z"),
        (with_keys(b"", CC=["a2", "z"]), "z"),
        (with_keys(b"", CC=["a2"], BCC=["y"]), "y"),
        (with_keys(b"", "a1", CC=["a2"], BCC=["a3"]), ""),
        (with_keys(b"", "z", exchange="x", CC=["y"]), ""),
    ],
)
def test_all_routing_keys_of_a_message_have_to_be_permitted(
    topic_client: Client, message: bytes, refused: str
) -> None:
    for _ in range(2):
        topic_client.write(message)
        if refused:
            topic_client.expect_refused(topic_refusal(refused), (60, 40))
        else:
            topic_client.probe()


@pytest.mark.parametrize(
    ("bind", "unbind"),
    [
        (
            Queue.Bind(queue="q", exchange="t", routing_key="{}"),
            Queue.Unbind(queue="q", exchange="t", routing_key="{}"),
        ),
        (
            Exchange.Bind(destination="x", source="t", routing_key="{}"),
            Exchange.Unbind(destination="x", source="t", routing_key="{}"),
        ),
    ],
)
def test_the_key_of_a_binding_has_to_be_permitted(topic_client: Client, bind: Frame, unbind: Frame) -> None:
    for sent in (bind, unbind):
        sent.routing_key = "b1"
        topic_client.send(1, sent)
        assert topic_client.receive()[1].name == f"{sent.name}Ok"
        sent.routing_key = "a1"
        topic_client.send(1, sent)
        topic_client.expect_refused(topic_refusal("a1", "read"), (sent.index >> 16, sent.index & 0xFFFF))


def test_binding_without_queue_and_key_uses_the_queue_name(
    topic_client: Client,
) -> None:
    topic_client.call(1, Queue.Declare(queue="q", durable=True), Queue.DeclareOk)
    topic_client.send(1, Queue.Bind(queue="", exchange="t", routing_key=""))
    topic_client.expect_refused(topic_refusal("q", "read"), (50, 20))


def test_messages_before_a_forbidden_key_are_published_once(broker: LoneBroker, topic_client: Client) -> None:
    topic_client.write(
        b"".join(
            with_keys(body, "a", CC=keys)
            for body, keys in ((b"1", ["a"]), (b"2", ["a2"]), (b"3", ["z"]), (b"4", ["a"]))
        )
    )
    topic_client.expect_refused(topic_refusal("z"), (60, 40))
    broker.operate(topics("", "b", exchange="none"))
    assert published(topic_client, broker) == 2


def test_messages_with_a_key_permitted_later_are_published_once(
    broker: LoneBroker, topic_client: Client
) -> None:
    topic_client.call(1, Confirm.Select(), Confirm.SelectOk)
    broker.group.holding = True
    topic_client.write(
        b"".join(
            with_keys(body, "a", CC=keys)
            for body, keys in ((b"1", ["a"]), (b"2", ["a2"]), (b"3", ["z"]), (b"4", ["a"]))
        )
    )
    with pytest.raises(TimeoutError):
        topic_client.receive(0.2)
    broker.learn(topics("^a|z", "^b"))
    broker.call(broker.group.release)
    acked = 0
    while acked < 4:
        ack = topic_client.expect(Basic.Ack)
        acked = ack.delivery_tag
    assert published(topic_client, broker) == 4


def published(client: Client, broker: LoneBroker) -> int:
    """How many messages the node has been given."""
    client.open_channel(9)
    return broker.broker.counters.amqp091.messages_received


def test_variables_are_replaced_by_literal_names(broker: LoneBroker) -> None:
    user = "a.b{vhost}|"
    broker.operate(
        PutUser(user, SALT, hash_password(SALT, user.encode()), []),
        permissions(".*", ".*", ".*", user=user),
        topics(r"^{username}\.{vhost}(\.{other})?$", "", user=user),
    )
    with Client(broker, user) as client:
        for key in (f"{user}./", f"{user}./.{{other}}"):
            client.write(publish(1, key, b"", exchange="t"))
            client.probe()
        for key in ("axb{vhost}|./", "a.b{vhost}", "a.b/|./"):
            client.write(publish(1, key, b"", exchange="t"))
            place = f"topic '{key}' in exchange 't' in vhost '/'"
            client.expect_refused(f"write access to {place} refused for user '{user}'", (60, 40))


def test_missing_exchange_is_refused_as_not_found(topic_client: Client) -> None:
    topic_client.send(1, Exchange.Delete(exchange="t"))
    topic_client.expect(Exchange.DeleteOk)
    topic_client.write(publish(1, "z", b"", exchange="t"))
    topic_client.expect_close(404, "NOT_FOUND - no exchange 't' in vhost '/'", channel=1)


def test_exchange_declared_at_a_different_node_restricts_keys(
    broker: LoneBroker, topic_client: Client
) -> None:
    broker.operate(topics("^a", "^b", exchange="new"))
    broker.group.holding = True
    topic_client.write(publish(1, "z", b"", exchange="new"))
    with pytest.raises(TimeoutError):
        topic_client.receive(0.2)
    broker.learn(DeclareExchange(1000, "new", "topic", False, True, False, False, {}))
    broker.call(broker.group.release)
    topic_client.expect_refused(topic_refusal("z", exchange="new"), (60, 40))


def test_exchange_restricts_keys_while_it_is_a_topic_exchange(
    broker: LoneBroker, topic_client: Client
) -> None:
    message = publish(1, "z", b"", exchange="t")
    delete = Exchange.Delete(exchange="t")
    for kind in ("direct", "topic", "fanout", "topic"):
        topic_client.call(1, delete, Exchange.DeleteOk)
        topic_client.call(1, Exchange.Declare(exchange="t", exchange_type=kind), Exchange.DeclareOk)
        topic_client.write(message)
        if kind == "topic":
            topic_client.expect_refused(topic_refusal("z"), (60, 40))
        else:
            topic_client.probe()
    broker.operate(ClearTopicPermissions("anna", "/", ""))
    topic_client.write(message)
    topic_client.probe()


def test_a_new_restriction_counts_for_the_next_message(broker: LoneBroker, topic_client: Client) -> None:
    broker.operate(ClearTopicPermissions("anna", "/", "t"))
    message = publish(1, "z", b"", exchange="t")
    topic_client.write(message)
    topic_client.probe()
    broker.operate(topics("^a", "^b"))
    topic_client.write(message)
    topic_client.expect_refused(topic_refusal("z"), (60, 40))


# Cached permissions


def test_caches_of_permissions_are_bounded(
    broker: LoneBroker, topic_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "GRANTS_MAX", 3)
    for number in range(10):
        topic_client.send(1, Queue.Declare(queue=f"q{number}"))
        topic_client.expect(Queue.DeclareOk)
        topic_client.write(publish(1, f"a{number}", b"", exchange="t"))
    topic_client.probe()
    [connection] = broker.broker.connections.values()
    known = connection._channels[1].core.access
    assert max(len(known._grants), len(known._keys), len(known._publishes)) <= 3


def test_refused_methods_are_refused_for_any_number_of_names(client: Client) -> None:
    for number in range(5):
        client.send(1, Basic.Get(queue=f"q{number}"))
        client.expect_refused(refusal(queue("read", f"q{number}")), (60, 70))


# User-id


@pytest.mark.parametrize(("tags", "may"), [([], False), (["administrator"], False), (["impersonator"], True)])
def test_only_an_impersonator_may_set_a_different_user_id(
    broker: LoneBroker, tags: list[str], may: bool
) -> None:
    commands_: list[Command] = [PutUser("anna", SALT, PASSWORD, tags), permissions(".*", ".*", ".*")]
    broker.operate(*commands_)
    with Client(broker) as client:
        client.write(publish(1, "q", b"", properties=b"\0\x10\x03bob"))
        if may:
            client.probe()
        else:
            text = "PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'anna'"
            client.expect_close(406, text, channel=1)


# Answers after a message

ASKED: list[tuple[Frame, type[Frame]]] = [
    (Confirm.Select(), Confirm.SelectOk),
    (Basic.Qos(prefetch_count=1), Basic.QosOk),
    (Tx.Select(), Tx.SelectOk),
    (Flow(active=True), commands.Channel.FlowOk),
    (Basic.Cancel("none"), Basic.CancelOk),
    (Basic.Qos(prefetch_count=1, global_=True), Basic.QosOk),
]


@pytest.mark.parametrize(("sent", "answer"), ASKED)
def test_returned_message_precedes_the_answer_to_a_later_method(
    broker: LoneBroker, sent: Frame, answer: type[Frame]
) -> None:
    with Client(broker, "guest") as client:
        client.write(publish(1, "nowhere", b"m", mandatory=True) + marshal(1, sent))
        method, _, body = client.expect_message()
        assert (method.name, body) == ("Basic.Return", b"m")
        client.expect(answer)
        client.call(1, sent, answer)


@pytest.mark.parametrize("sent", [sent for sent, _ in ASKED])
def test_refused_message_precedes_the_answer_to_a_later_method(broker: LoneBroker, sent: Frame) -> None:
    with Client(broker, "guest") as client:
        client.write(publish(1, "k", b"m", exchange="amq.rabbitmq.trace") + marshal(1, sent))
        text = "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'"
        client.expect_close(403, text, channel=1)


def test_later_method_waits_once_for_a_message(broker: LoneBroker) -> None:
    with Client(broker, "guest") as client:
        client.write(publish(1, "nowhere", b"m"))
        client.call(1, Confirm.Select(), Confirm.SelectOk)
        broker.group.holding = True
        client.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)
        broker.call(broker.group.release)


def test_a_transaction_is_rolled_back_without_the_log(broker: LoneBroker) -> None:
    with Client(broker, "guest") as client:
        client.call(1, Tx.Select(), Tx.SelectOk)
        broker.group.holding = True
        client.write(publish(1, "nowhere", b"m", mandatory=True))
        client.call(1, Tx.Rollback(), Tx.RollbackOk)
        broker.call(broker.group.release)


def test_a_broken_frame_behind_a_refusal_closes_the_connection(broker: LoneBroker, client: Client) -> None:
    broker.group.holding = True
    client.send(1, Basic.Get(queue="q"))
    client.write(frame_bytes(9, 1, b""))
    client.expect(commands.Connection.Close)
    broker.call(broker.group.release)
    broker.pass_some_time()
