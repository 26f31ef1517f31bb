"""Clients that request very much with few bytes: in a transaction, and while the log is stalled."""

from __future__ import annotations

from collections.abc import Collection, Generator
from functools import partial
from threading import Thread
from typing import Any

import pytest
from pamqp import commands
from pamqp.header import ContentHeader

from qq.machine.catalog.limits import ARGUMENTS_BYTES_MAX, TRANSACTION_COMMANDS_MAX, TRANSACTION_MESSAGES_MAX
from qq.machine.protocol.codec import decode_batch
from qq.sessions.batch import BATCH_BYTES_MAX
from qq.sessions.broker import AHEAD_BYTES
from qq.sessions.pending_requests import COMMAND_BYTES, MESSAGE_BYTES
from qq.sessions.submissions import BATCHES_IN_FLIGHT_MAX, TENANT_SHARES_MIN
from qq.testing import LocalCluster
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import RawClient, marshal, publish

Basic, Chan, Exchange, Queue, Tx = (
    commands.Basic,
    commands.Channel,
    commands.Exchange,
    commands.Queue,
    commands.Tx,
)
FEW_BYTES = 64 * 1024
"""Bytes that a connection may request before the log has them, in these tests."""
TOO_MANY = f"a transaction of more than {TRANSACTION_COMMANDS_MAX} commands (limit transaction_commands)"
TOO_MANY_COMMANDS = f"PRECONDITION_FAILED - {TOO_MANY}"


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker(transaction_bytes=20_000_000) as lone:
        yield lone


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as raw:
        raw.open_channel(1)
        raw.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        raw.call(1, Tx.Select(), Tx.SelectOk)
        yield raw


def ready(broker: LoneBroker, queue: str = "q") -> int:
    return broker.call(lambda: broker.machine.vhosts["/"].queues[queue].ready)


# --- transactions


def test_a_commit_of_very_many_tiny_messages_ends_no_node() -> None:
    """300,000 messages with keys of 247 octets were a batch of 80 MiB, too large for any link, and the node ended.

    A tenth of them still exceeds the limit of a transaction many times.
    """
    with LocalCluster(nodes=3) as cluster:
        leader, follower, third = cluster.leader(), *cluster.followers()
        with RawClient(third.amqp_port) as honest:
            honest.open_channel(1)
            honest.call(1, Queue.Declare(queue="honest"), Queue.DeclareOk)
            honest.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            for node in (leader, follower):
                with RawClient(node.amqp_port) as hostile:
                    hostile.open_channel(1)
                    hostile.call(1, Tx.Select(), Tx.SelectOk)
                    for start in range(0, 30_000, 10_000):
                        keys = range(start, start + 10_000)
                        hostile.write(b"".join(publish(1, f"{key:0247d}", b"") for key in keys))
                    hostile.send(1, Tx.Commit())
                    hostile.expect_close(406, TOO_MANY_COMMANDS, channel=1)
                    hostile.send(1, Chan.CloseOk())
                    hostile.open_channel(
                        1
                    )  # methods after the error are dropped, and further clients continue
                honest.write(publish(1, "honest", b"m"))
                honest.expect(Basic.Ack, 1)
        assert all(node.running for node in cluster.nodes)
        cluster.wait_caught_up()
        assert [queue["messages"] for queue in third.queues()] == [2]


def alternating(count: int) -> bytes:
    """Return commands; consecutive commands have different keys."""
    return b"".join(publish(1, ("q", "p")[number % 2], b"") for number in range(count))


def test_a_transaction_may_have_so_many_commands(broker: LoneBroker, client: RawClient) -> None:
    client.write(alternating(TRANSACTION_COMMANDS_MAX))
    client.call(1, Tx.Commit(), Tx.CommitOk)
    assert ready(broker) == TRANSACTION_COMMANDS_MAX // 2
    client.write(alternating(TRANSACTION_COMMANDS_MAX))
    client.call(1, Tx.Rollback(), Tx.RollbackOk)
    client.write(alternating(TRANSACTION_COMMANDS_MAX + 1))
    error = client.expect_close(406, TOO_MANY_COMMANDS, channel=1)
    assert (error.class_id, error.method_id) == (60, 40)
    assert ready(broker) == TRANSACTION_COMMANDS_MAX // 2


def test_further_keys_count_as_commands(client: RawClient) -> None:
    keys = 9
    table = b"\2CCA" + (keys * 6).to_bytes(4, "big") + b"S\0\0\0\1k" * keys
    properties = b"\x20\0" + len(table).to_bytes(4, "big") + table
    fit = TRANSACTION_COMMANDS_MAX // (1 + keys)
    client.write(b"".join(publish(1, f"k{number}", b"", properties=properties) for number in range(fit)))
    client.call(1, Tx.Rollback(), Tx.RollbackOk)
    client.write(b"".join(publish(1, f"k{number}", b"", properties=properties) for number in range(fit + 1)))
    client.expect_close(406, TOO_MANY_COMMANDS, channel=1)


def test_message_routed_by_headers_is_a_command_of_its_own(broker: LoneBroker, client: RawClient) -> None:
    arguments: Any = {"x-match": "all", "a": "b"}
    client.call(1, Queue.Bind(queue="q", exchange="amq.headers", arguments=arguments), Queue.BindOk)
    count = TRANSACTION_COMMANDS_MAX + 1
    client.write(
        publish(1, "q", b"", exchange="amq.direct") * count
    )  # equal consecutive messages: a single command
    client.call(1, Tx.Commit(), Tx.CommitOk)
    client.write(publish(1, "q", b"", exchange="amq.headers") * count)
    client.expect_close(406, TOO_MANY_COMMANDS, channel=1)


def test_a_transaction_may_have_so_many_messages(broker: LoneBroker, client: RawClient) -> None:
    some = publish(1, "q", b"") * 1000
    for _ in range(TRANSACTION_MESSAGES_MAX // 1000):
        client.write(some)
    client.call(1, Tx.Commit(), Tx.CommitOk)
    assert ready(broker) == TRANSACTION_MESSAGES_MAX
    for _ in range(TRANSACTION_MESSAGES_MAX // 1000):
        client.write(some)
    client.write(publish(1, "q", b""))
    text = f"a transaction of more than {TRANSACTION_MESSAGES_MAX} messages (limit transaction_messages)"
    client.expect_close(406, f"PRECONDITION_FAILED - {text}", channel=1)


def test_keys_and_headers_count_towards_transaction_bytes() -> None:
    count, key = 10, "k" * 200
    stored = (
        len(publish(1, "", b"")) - len(publish(1, "", b"").split(b"\xce")[0]) - 1
    )  # the frame of the header
    bytes_max = count * (COMMAND_BYTES + len(key) + MESSAGE_BYTES + stored)
    with LoneBroker(transaction_bytes=bytes_max) as broker, RawClient(broker.amqp_port) as raw:
        raw.open_channel(1)
        raw.call(1, Tx.Select(), Tx.SelectOk)
        messages = [publish(1, f"{key[:-2]}{number:02}", b"") for number in range(count + 1)]
        raw.write(b"".join(messages[:count]))
        raw.call(1, Tx.Commit(), Tx.CommitOk)
        raw.write(b"".join(messages))
        text = f"a transaction of more than {bytes_max} bytes (limit transaction_bytes)"
        raw.expect_close(406, f"PRECONDITION_FAILED - {text}", channel=1)


def hold(client: RawClient, count: int) -> None:
    """Have so many messages delivered on channel 1, under the tags from 1 on."""
    client.open_channel(2)
    client.write(publish(2, "q", b"m") * count)
    client.send(1, Basic.Consume(queue="q", consumer_tag="t"))
    client.expect(Basic.ConsumeOk, 1)
    for _ in range(count):
        client.expect_message()


def unacknowledged(broker: LoneBroker) -> int:
    return broker.call(lambda: broker.machine.vhosts["/"].queues["q"].unacked)


def test_acks_in_order_are_joined_into_a_command(broker: LoneBroker, client: RawClient) -> None:
    count = TRANSACTION_COMMANDS_MAX + 1
    hold(client, count)
    for tag in range(1, count + 1):
        client.send(1, Basic.Ack(delivery_tag=tag))
        if tag % 2:
            client.write(publish(1, "none", b""))
    client.call(1, Tx.Commit(), Tx.CommitOk)
    assert unacknowledged(broker) == 0


def test_a_transaction_may_settle_in_so_many_commands(broker: LoneBroker, client: RawClient) -> None:
    hold(client, 2 * TRANSACTION_COMMANDS_MAX + 2)
    tags = range(1, 2 * TRANSACTION_COMMANDS_MAX + 2, 2)
    client.send(1, *(Basic.Ack(delivery_tag=tag) for tag in tags[:-1]))
    client.call(1, Tx.Rollback(), Tx.RollbackOk)
    client.send(1, *(Basic.Ack(delivery_tag=tag) for tag in tags))
    error = client.expect_close(406, TOO_MANY_COMMANDS, channel=1)
    assert (error.class_id, error.method_id) == (60, 80)
    client.send(1, Chan.CloseOk(), Chan.Open())
    client.expect(Chan.OpenOk, 1)
    assert unacknowledged(broker) == 0  # the channel's messages are requeued without loss
    assert ready(broker) == 2 * TRANSACTION_COMMANDS_MAX + 2


# --- batches


def batches(broker: LoneBroker) -> list[tuple[int, int, int]]:
    """Octets, commands and messages of those that were submitted since."""
    found: list[tuple[int, int, int]] = []
    propose = broker.group.propose

    def recorded(payload: Any, weight: int, *, may_wait: bool) -> int:
        batch = b"".join(payload)
        commands_, offsets = decode_batch(batch)
        found.append((len(batch), len(commands_), len(offsets) - 1))
        return propose(payload, weight, may_wait=may_wait)

    broker.group.propose = recorded  # pyright: ignore[reportAttributeAccessIssue]
    return found


@pytest.mark.parametrize("key", ["{:0240d}", "q"], ids=["ever-new-keys", "one-key"])
def test_batch_of_tiny_messages_is_bounded(key: str) -> None:
    with LoneBroker(uncommitted_bytes=64 * 1024 * 1024) as broker, RawClient(broker.amqp_port) as raw:
        raw.open_channel(1)
        raw.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        broker.group.holding = True
        found = batches(broker)
        messages = b"".join(publish(1, key.format(each), b"") for each in range(20_000))
        writing = Thread(target=raw.write, args=(messages,))  # the node may not read all before the release
        writing.start()
        wait_until(
            lambda: broker.call(lambda: broker.broker.submissions.pending_bytes) > AHEAD_BYTES, "a backlog"
        )
        broker.call(broker.group.release)
        writing.join()
        raw.socket.settimeout(60)
        raw.call(1, Basic.Qos(), Basic.QosOk)
        assert sum(count for _, _, count in found) == 20_000
        # Some is read at once that a batch has to take in whole.
        most = BATCH_BYTES_MAX + 512 * 1024
        assert max(octets for octets, _, _ in found) < most
        assert max(count for _, count, _ in found) < most / COMMAND_BYTES
        assert max(count for _, _, count in found) < most / MESSAGE_BYTES


def test_commit_that_does_not_fit_starts_a_new_batch(broker: LoneBroker, client: RawClient) -> None:
    client.open_channel(2)
    client.call(2, Queue.Declare(queue="q", passive=True), Queue.DeclareOk)
    broker.group.holding = True
    found = batches(broker)
    while len(found) < BATCHES_IN_FLIGHT_MAX:  # while so many batches are in flight, requests gather
        there = len(found)
        client.write(publish(2, "q", b""))
        wait_until(partial(_has_more, found, there), "a batch")
    client.write(publish(2, "q", b"x" * 900_000))
    client.write(publish(1, "q", b"x" * 900_000))
    client.send(1, Tx.Commit())
    submissions = broker.broker.submissions
    wait_until(lambda: broker.call(lambda: submissions.pending_bytes) > 1_800_000, "the commit")
    broker.call(broker.group.release)
    client.expect(Tx.CommitOk, 1)
    assert [messages for _, _, messages in found] == [1, 1, 1, 1]


def _has_more(found: Collection[object], count: int) -> bool:
    return len(found) > count


# --- with a stalled log


@pytest.fixture
def slow() -> Generator[LoneBroker]:
    with LoneBroker(uncommitted_bytes=FEW_BYTES, node_uncommitted_bytes=4 * FEW_BYTES) as lone:
        yield lone


def is_paused(broker: LoneBroker, client: RawClient) -> bool:
    """Whether the node has stopped reading from the client."""
    port = client.socket.getsockname()[1]

    def is_done() -> bool:
        [mine] = [each for each in broker.broker.connections.values() if each.peer_port == port]
        return bool(mine._reasons_to_pause)

    return broker.call(is_done)


def test_channels_that_come_and_go_wait_for_the_log(slow: LoneBroker) -> None:
    numbers = range(1, 2000)
    with RawClient(slow.amqp_port) as churning, RawClient(slow.amqp_port) as other:
        other.open_channel(1)
        slow.group.holding = True
        for number in numbers:
            churning.send(number, Chan.Open(), Chan.Close(200, "", 0, 0))
        wait_until(lambda: is_paused(slow, churning), "the end of reading")
        other.call(1, Basic.Qos(), Basic.QosOk)  # further clients are served
        slow.call(slow.group.release)
        answers = [churning.receive() for _ in (*numbers, *numbers)]
        assert {number for number, answer in answers if isinstance(answer, Chan.CloseOk)} == set(numbers)
        wait_until(lambda: not is_paused(slow, churning), "reading again")


def test_declarations_on_many_channels_wait_for_the_log(slow: LoneBroker) -> None:
    arguments: Any = {f"k{number}": "x" * 20 for number in range(20)}
    with RawClient(slow.amqp_port) as client:
        channels = range(1, 2000)
        for number in channels:
            client.open_channel(number)
        slow.group.holding = True
        data = b"".join(marshal(number, Queue.Declare(queue="q", arguments=arguments)) for number in channels)
        client.write(data)
        wait_until(lambda: is_paused(slow, client), "the end of reading")
        slow.call(slow.group.release)
        for number in channels:
            client.expect(Queue.DeclareOk, number)


def test_acknowledgements_wait_for_the_log(slow: LoneBroker) -> None:
    count = 3000
    with RawClient(slow.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        client.write(publish(1, "q", b"") * count)
        client.call(1, Basic.Qos(prefetch_count=count), Basic.QosOk)
        client.send(1, Basic.Consume(queue="q", consumer_tag="t"))
        client.expect(Basic.ConsumeOk, 1)
        for _ in range(count):
            client.expect(Basic.Deliver, 1)
            client.expect(ContentHeader, 1)
        slow.group.holding = True
        client.send(1, *(Basic.Ack(delivery_tag=tag) for tag in range(1, count, 2)))
        wait_until(lambda: is_paused(slow, client), "the end of reading")
        slow.call(slow.group.release)
        queue = slow.machine.vhosts["/"].queues["q"]
        wait_until(lambda: slow.call(lambda: queue.unacked) == count // 2, "all that was acknowledged")


def test_full_node_admits_clients_of_light_virtual_hosts(slow: LoneBroker) -> None:
    """A virtual host with large messages once kept the clients of all others out."""
    limit = 4 * FEW_BYTES
    why = "what the log has not taken in yet is more than node_uncommitted_bytes"
    text = f"RESOURCE_ERROR - connection refused: {why} ({limit})"
    submissions = slow.broker.submissions
    tenant = submissions.tenant("/")

    def fill(pending: int, of_tenant: int) -> None:
        submissions.waiting_bytes += pending
        tenant.pending_bytes += of_tenant

    with RawClient(slow.amqp_port) as before:
        before.open_channel(1)
        slow.call(fill, limit + 1, limit // TENANT_SHARES_MIN)
        with RawClient(slow.amqp_port) as light:
            light.open_channel(1)
        slow.call(fill, 0, 1)
        with RawClient(slow.amqp_port, admitted=False) as late:
            late.expect_close(506, text)
        many = [submissions.tenant(f"vhost {number}") for number in range(TENANT_SHARES_MIN * 2)]
        slow.call(fill, 0, -limit // (TENANT_SHARES_MIN * 2))
        with RawClient(slow.amqp_port, admitted=False) as late:  # more virtual hosts have smaller shares
            late.expect_close(506, text)
        many.clear()
        slow.call(fill, -limit - 1, -tenant.pending_bytes)
        with RawClient(slow.amqp_port) as later:
            later.open_channel(1)
        before.call(1, Basic.Qos(), Basic.QosOk)


def test_virtual_host_counts_requests_of_ended_connections(slow: LoneBroker) -> None:
    tenant = slow.broker.submissions.tenant("/")
    with RawClient(slow.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        assert tenant.pending_bytes == 0
        slow.group.holding = True
        client.write(publish(1, "q", bytes(FEW_BYTES // 2)))
        wait_until(lambda: tenant.pending_bytes > FEW_BYTES // 2, "the message")
    wait_until(lambda: not slow.broker.connections, "the end of the connection")
    assert tenant.pending_bytes > FEW_BYTES // 2
    slow.call(slow.group.release)
    wait_until(lambda: tenant.pending_bytes == 0, "the log")


def test_evicted_node_forgets_what_virtual_hosts_have_requested(slow: LoneBroker) -> None:
    tenant = slow.broker.submissions.tenant("/")
    with RawClient(slow.amqp_port) as client:
        client.open_channel(1)
        slow.group.holding = True
        client.send(1, Queue.Declare(queue="q"))
        wait_until(lambda: tenant.pending_bytes > 0, "the request")
        slow.call(slow.evict)
    assert tenant.pending_bytes == 0


def test_full_node_stops_reading_only_heavy_clients(slow: LoneBroker) -> None:
    """Light clients once waited for seconds until large messages that had come at the same moment were stored."""
    size = FEW_BYTES // 3
    with RawClient(slow.amqp_port) as heavy, RawClient(slow.amqp_port) as light:
        for client in (heavy, light):
            client.open_channel(1)
            client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        slow.broker.submissions.waiting_bytes += 4 * FEW_BYTES + 1
        slow.group.holding = True
        heavy.write(publish(1, "q", bytes(2 * size)))
        wait_until(lambda: is_paused(slow, heavy), "the end of reading")
        light.write(publish(1, "q", b"a"))
        port = light.socket.getsockname()[1]
        [waiting] = [each for each in slow.broker.connections.values() if each.peer_port == port]
        wait_until(lambda: waiting.waits_for_log, "what the light one has asked for")
        assert not is_paused(slow, light)
        slow.call(slow.group.release)
        wait_until(lambda: not is_paused(slow, heavy), "reading again")
        slow.broker.submissions.waiting_bytes -= 4 * FEW_BYTES + 1


def test_repeated_live_prefetch_changes_wait_for_the_log(broker: LoneBroker) -> None:
    """Each change is a command for each consumer."""
    with RawClient(broker.amqp_port, more_capabilities=["live_prefetch"]) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        for number in range(50):
            arguments: Any = {"x-live-prefetch": True}
            client.call(
                1, Basic.Consume(queue="q", consumer_tag=f"t{number}", arguments=arguments), Basic.ConsumeOk
            )
        broker.group.holding = True
        found = batches(broker)
        client.send(1, *(Basic.Qos(prefetch_count=number) for number in range(1, 101)))
        broker.call(lambda: None)
        broker.call(broker.group.release)
        for _ in range(100):
            client.expect(Basic.QosOk, 1)
        assert max(count for _, count, _ in found) == 50
        prefetch = broker.call(lambda: {each.prefetch for each in broker.machine.consumers.values()})
        assert prefetch == {100}


# --- arguments


@pytest.mark.parametrize(
    ("frame", "class_id", "method_id"),
    [
        (Queue.Declare(queue="q"), 50, 10),
        (Queue.Declare(queue="q", passive=True), 50, 10),
        (Queue.Bind(queue="q", exchange="amq.direct"), 50, 20),
        (Queue.Unbind(queue="q", exchange="amq.direct"), 50, 50),
        (Exchange.Declare(exchange="x"), 40, 10),
        (Exchange.Bind(source="amq.direct", destination="amq.fanout"), 40, 30),
        (Basic.Consume(queue="q"), 60, 20),
    ],
    ids=["queue", "passive", "bind", "unbind", "exchange", "bind-exchange", "consume"],
)
def test_arguments_that_are_too_large_are_refused_before_the_log(
    broker: LoneBroker, frame: Any, class_id: int, method_id: int
) -> None:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        found = batches(broker)
        frame.arguments = {"a": "x" * ARGUMENTS_BYTES_MAX}
        client.send(1, frame)
        _, error = client.receive()
        assert (error.reply_code, error.class_id, error.method_id) == (406, class_id, method_id)
        assert f"the limit is {ARGUMENTS_BYTES_MAX}" in error.reply_text
        wait_until(lambda: bool(found), "the end of the channel in the log")
        assert max(octets for octets, _, _ in found) < 100  # no more than that the channel is gone
