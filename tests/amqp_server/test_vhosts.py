"""Virtual hosts: admission, separation, and the connections of a deleted virtual host."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from pamqp import commands

from qq.machine.protocol.commands import (
    ClearPermissions,
    CloseConnection,
    Command,
    DeclareQueue,
    DeleteUser,
    DeleteVhost,
    PutUser,
    PutVhost,
    SetPermissions,
    SetUserLimits,
    SetVhostLimits,
)
from qq.sessions.broker import EVICTED
from qq.sessions.login import hash_password
from tests.harness.lone_broker import SALT, LoneBroker
from tests.harness.raw_client import RawClient, publish

Basic, Connection, Queue = commands.Basic, commands.Connection, commands.Queue
NO_ACCESS = "access to vhost 'orders' refused for user 'anna'"


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    """With the virtual host orders, where anna may do all."""
    with LoneBroker(handshake_timeout_s=1.0) as broker:
        broker.operate(
            PutVhost("orders", "", [], ""),
            PutUser("anna", SALT, hash_password(SALT, b"anna"), []),
            SetPermissions("anna", "orders", ".*", ".*", ".*"),
        )
        yield broker


def client_of(broker: LoneBroker, vhost: str = "orders", *, admitted: bool = True) -> RawClient:
    return RawClient(broker.amqp_port, user="anna", vhost=vhost, admitted=admitted)


def wait_until(condition: Callable[[], bool], broker: LoneBroker) -> None:
    while not broker.call(condition):
        pass


def expect_no_state(broker: LoneBroker) -> None:
    """Of any connection."""
    wait_until(lambda: not broker.broker.connections, broker)
    broker.pass_some_time()
    assert not broker.machine.catalog.connections
    assert not [number for node, number in broker.machine._core.sessions if node == "n1"]


# Opening


@pytest.mark.parametrize(
    ("requested", "vhost", "text"),
    [
        ([], "none", "vhost none not found"),
        ([], "/", "access to vhost '/' refused for user 'anna'"),
        ([ClearPermissions("anna", "orders")], "orders", NO_ACCESS),
        (
            [SetVhostLimits("orders", {"max-connections": 0})],
            "orders",
            f"{NO_ACCESS}: connection limit (0) is reached",
        ),
        (
            [SetUserLimits("anna", {"max-connections": 0})],
            "orders",
            "connection refused for user 'anna': user connection limit (0) is reached",
        ),
    ],
)
@pytest.mark.parametrize("is_skipped", [False, True])
def test_refused_client_is_given_the_reason(
    broker: LoneBroker, requested: list[Command], vhost: str, text: str, is_skipped: bool
) -> None:
    broker.operate(*requested)
    if is_skipped:
        broker.skip()
    with client_of(broker, vhost, admitted=False) as client:
        if is_skipped:
            wait_until(lambda: any(c.in_log for c in broker.broker.connections.values()), broker)
            broker.pass_some_time()
            broker.resume()
        close = client.expect(Connection.Close)
        assert (close.reply_code, close.reply_text) == (530, f"NOT_ALLOWED - {text}")
        assert (close.class_id, close.method_id) == (10, 40)
        client.send(0, Connection.CloseOk())
        client.expect_end()
    expect_no_state(broker)


def test_a_client_is_let_in_by_a_snapshot_and_only_once(broker: LoneBroker) -> None:
    broker.skip()
    with client_of(broker, admitted=False) as client:
        wait_until(lambda: any(c.in_log for c in broker.broker.connections.values()), broker)
        broker.pass_some_time()
        broker.resume()
        client.expect(Connection.OpenOk)
        broker.resume()
        client.open_channel(1)
        client.close()
    expect_no_state(broker)


@pytest.mark.parametrize("limit", [SetVhostLimits("orders", {"max-connections": 2})])
def test_closed_connection_frees_a_place_under_the_limit(broker: LoneBroker, limit: Command) -> None:
    broker.operate(limit)
    for _ in range(3):
        with client_of(broker) as one, client_of(broker) as other:
            with client_of(broker, admitted=False) as refused:
                refused.expect_close(530, f"NOT_ALLOWED - {NO_ACCESS}: connection limit (2) is reached")
            one.close()
            other.close()
        expect_no_state(broker)


def test_handshake_without_an_answer_of_the_log_ends(broker: LoneBroker) -> None:
    broker.group.holding = True
    with client_of(broker, admitted=False) as client:
        client.send(1, commands.Channel.Open())
        client.expect_end()
    broker.call(broker.group.release)
    expect_no_state(broker)


def test_client_that_leaves_before_the_answer_leaves_no_session(broker: LoneBroker) -> None:
    broker.group.holding = True
    with client_of(broker, admitted=False):
        wait_until(lambda: any(c.in_log for c in broker.broker.connections.values()), broker)
    wait_until(lambda: not broker.broker.connections, broker)
    broker.call(broker.group.release)
    expect_no_state(broker)


def test_methods_sent_ahead_are_carried_out_after_the_answer(broker: LoneBroker) -> None:
    broker.group.holding = True
    with client_of(broker, admitted=False) as client:
        client.send(1, commands.Channel.Open(), Queue.Declare(queue="q"))
        with pytest.raises(TimeoutError):
            client.receive(0.2)
        broker.call(broker.group.release)
        for kind in (Connection.OpenOk, commands.Channel.OpenOk, Queue.DeclareOk):
            client.expect(kind)


def test_channels_above_the_user_limit_close_the_connection(broker: LoneBroker) -> None:
    broker.operate(SetUserLimits("anna", {"max-channels": 2}))
    with client_of(broker) as client:
        client.open_channel(1)
        client.open_channel(2)
        client.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        client.open_channel(3)
        client.call(3, Queue.Declare(queue="q"), Queue.DeclareOk)
        client.open_channel(4)
        close = client.expect(Connection.Close)
        assert close.reply_text == (
            "NOT_ALLOWED - number of channels opened for user 'anna' has reached the maximum allowed user limit of (2)"
        )
        assert (close.reply_code, close.class_id, close.method_id) == (530, 20, 10)
        client.send(0, Connection.CloseOk())
        client.expect_end()
    expect_no_state(broker)


# Inside


def test_queues_of_the_same_name_in_two_vhosts_are_distinct(broker: LoneBroker) -> None:
    with RawClient(broker.amqp_port) as elsewhere, client_of(broker) as client:
        for each, count in ((elsewhere, 1), (client, 2)):
            each.open_channel(1)
            each.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
            each.write(publish(1, "q", b"m") * count)
        for each, count in ((elsewhere, 1), (client, 2)):
            assert each.call(1, Queue.Declare(queue="q"), Queue.DeclareOk).message_count == count
        client.call(1, Queue.Delete(queue="q"), Queue.DeleteOk)
        client.send(1, Queue.Declare(queue="q", passive=True))
        client.expect_close(404, "NOT_FOUND - no queue 'q' in vhost 'orders'", channel=1)
        assert elsewhere.call(1, Queue.Declare(queue="q"), Queue.DeclareOk).message_count == 1


def test_permissions_of_the_clients_virtual_host_apply(broker: LoneBroker) -> None:
    broker.operate(
        SetPermissions("anna", "orders", "", "", ""), SetPermissions("anna", "/", ".*", ".*", ".*")
    )
    with client_of(broker) as client, client_of(broker, "/") as elsewhere:
        client.open_channel(1)
        client.send(1, Queue.Declare(queue="q"))
        client.expect_close(
            403,
            "ACCESS_REFUSED - configure access to queue 'q' in vhost 'orders' refused for user 'anna'",
            channel=1,
        )
        elsewhere.open_channel(1)
        elsewhere.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)


# When it goes


@pytest.mark.parametrize("is_skipped", [False, True])
@pytest.mark.parametrize(
    ("deletion", "text"),
    [
        (DeleteVhost("orders"), "vhost 'orders' is deleted"),
        (DeleteUser("anna"), "user 'anna' is deleted"),
        (None, "they want it"),
    ],
)
def test_client_of_a_deleted_vhost_or_user_gets_the_reason(
    broker: LoneBroker, deletion: Command | None, text: str, is_skipped: bool
) -> None:
    with RawClient(broker.amqp_port) as elsewhere, client_of(broker) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        client.call(1, Basic.Consume(queue="q"), Basic.ConsumeOk)
        [number] = [c.id for c in broker.broker.connections.values() if c.user == "anna"]
        if is_skipped:
            broker.skip()
        broker.call(broker.broker.submissions.add, deletion or CloseConnection("n1", number, text))
        broker.pass_some_time()
        if is_skipped:
            broker.resume()
            broker.resume()
        client.expect_close(320, f"CONNECTION_FORCED - {text}")
        broker.pass_some_time()
        assert number in broker.broker.connections  # it waits for the answer
        client.send(0, Connection.CloseOk())
        client.expect_end()
        elsewhere.open_channel(1)
        elsewhere.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        elsewhere.close()
    expect_no_state(broker)


def test_methods_in_flight_are_refused_when_the_vhost_is_deleted(broker: LoneBroker) -> None:
    with client_of(broker) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        broker.group.holding = True
        client.write(publish(1, "q", b"m"))
        client.send(1, Queue.Declare(queue="new"))
        with pytest.raises(TimeoutError):
            client.receive(0.2)
        broker.learn(DeleteVhost("orders"))
        broker.call(broker.group.release)
        close = client.expect(Connection.Close)
        assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - vhost 'orders' is deleted")
    expect_no_state(broker)


# When the cluster gives the node up


def test_held_back_publish_of_an_evicted_node_is_dropped(broker: LoneBroker) -> None:
    """The log has forgotten the session then, and an unknown session would act in the default virtual host."""
    broker.operate(DeclareQueue(1, 1, "q", False, True, False, False, False, {}))
    with client_of(broker) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        broker.group.holding = True
        client.write(publish(1, "q", b"under way"))
        client.send(1, Basic.Qos(prefetch_count=1))  # it is answered when that is in the log
        client.write(publish(1, "q", b"held back"))
        with pytest.raises(TimeoutError):
            client.receive(0.2)
        broker.call(broker.evict)
        close = client.expect(Connection.Close)
        assert (close.reply_code, close.reply_text) == (320, f"CONNECTION_FORCED - {EVICTED}")
        client.send(0, Connection.CloseOk())
        client.expect_end()
    expect_no_state(broker)
    assert broker.machine.vhosts["/"].queues["q"].ready == 0
