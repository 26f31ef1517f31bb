"""Requests to the management node on a socket, with a real machine behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    SenderSettleMode,
    SourceTerminus,
    TransferFrame,
)
from qq.amqp10.values import Array, Long, Symbol, UInt, ULong, Uuid
from qq.amqp10_server.connection import Amqp10Connection
from qq.amqp10_server.management_answers import ANSWER_BYTES_MAX
from qq.amqp10_server.management_node import WAITING_BYTES_MAX
from qq.machine.protocol.commands import DEFAULT_VHOST, SetPermissions, SetUserLimits, SetVhostLimits
from tests.amqp10_server.lone_broker10 import (
    ANSWERS,
    REQUESTS,
    LoneBroker10,
    ManagementClient,
)


@pytest.fixture(name="client")
def client_fixture(broker: LoneBroker10) -> Iterator[ManagementClient]:
    with ManagementClient(broker.amqp_port) as client:
        client.manage()
        yield client


def statuses(client: ManagementClient, *requests: tuple[Any, ...]) -> list[str | None]:
    return [client.request(*request).status for request in requests]


def test_queue_is_declared_described_and_deleted(client: ManagementClient) -> None:
    arguments = {"x-queue-type": "quorum", "x-max-length": Long(5)}
    created = client.request("PUT", "/queues/q%2F1", {"arguments": arguments})
    assert (created.status, created.application_properties) == ("201", {"http:response": "1.1"})
    expected = {
        "name": "q/1",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "type": "quorum",
        "arguments": arguments,
        "leader": "n1",
        "replicas": Array(0xB1, ["n1"]),
        "message_count": ULong(0),
        "consumer_count": UInt(0),
    }
    assert created.body == expected
    again = client.request("PUT", "/queues/q%2F1", {"arguments": arguments})
    assert (again.status, again.body) == ("200", expected)
    described = client.request("GET", "/queues/q%2F1")
    assert (described.status, described.body) == ("200", expected)
    assert client.request("DELETE", "/queues/q%2F1/messages").body == {"message_count": ULong(0)}
    deleted = client.request("DELETE", "/queues/q%2F1")
    assert (deleted.status, deleted.body) == ("200", {"message_count": ULong(0)})
    assert client.request("DELETE", "/queues/q%2F1").status == "200"
    gone = client.request("GET", "/queues/q%2F1")
    assert (gone.status, gone.body) == ("404", "queue 'q/1' in vhost '/' not found")


def test_answer_has_the_message_id_with_its_type(client: ManagementClient) -> None:
    for message_id in ("text", ULong(7), Uuid(bytes(16)), b"octets", None):
        answer = client.request("GET", "/queues/none", message_id=message_id)
        assert answer.correlation_id == message_id
        assert type(answer.correlation_id) is type(message_id)


def test_refused_request_leaves_the_pair_usable(client: ManagementClient) -> None:
    assert client.request("PUT", "/queues/q", {}).status == "201"
    other = client.request("PUT", "/queues/q", {"auto_delete": True})
    assert other.status == "409"
    assert "inequivalent arg 'auto_delete'" in other.body
    missing = client.request("DELETE", "/queues/none/messages")
    assert (missing.status, missing.body) == ("404", "no queue 'none' in vhost '/'")
    assert client.request("PUT", "/queues/p", {}).status == "201"


def test_bad_requests_have_a_status_and_a_text(client: ManagementClient) -> None:
    refused = [client.request("PUT", "/queues/amq.x", {}), client.request("PUT", "/queues/", {})]
    refused += [
        client.request("PUT", "/queues/q", {"durable": "yes"}),
        client.request("PUT", "/queues/a%0A", {}),
    ]
    refused += [client.request("PUT", "/queues/q", {"arguments": {"x": Uuid(bytes(16))}})]
    refused += [
        client.request("PUT", "/queues/q", {"exclusive": True, "arguments": {"x-queue-type": "quorum"}})
    ]
    refused += [client.request("PUT", "/queues/q", [None]), client.request("GET", "/nowhere")]
    assert [(each.status, each.body) for each in refused] == [
        ("403", "queue 'amq.x' in vhost '/' starts with reserved prefix 'amq.'"),
        ("400", "declare queue with empty name not allowed"),
        ("400", "bad queue property durable: yes"),
        ("400", "Bad name 'a\n': line feed and carriage return characters not allowed"),
        ("400", f"unsupported argument {bytes(16)!r}"),
        ("400", "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"),
        ("400", "the body of the request must be a map, not [None]"),
        ("404", "no resource for GET /nowhere"),
    ]


def test_text_of_an_answer_is_unicode(client: ManagementClient) -> None:
    assert client.request("PUT", "/queues/q", {}).status == "201"
    refused = client.request("PUT", "/queues/q", {"arguments": {"x-dead-letter-exchange": b"\xff"}})
    assert refused.status == "409"
    assert "\ufffd" in refused.body


def test_exchanges_are_declared_and_deleted(client: ManagementClient) -> None:
    fanout = {"type": "fanout"}
    assert statuses(
        client,
        ("PUT", "/exchanges/x", fanout),
        ("PUT", "/exchanges/x", fanout),
        ("PUT", "/exchanges/x", {}),
        ("PUT", "/exchanges/y", {"type": "odd"}),
        ("PUT", "/exchanges/amq.direct", {}),
        ("PUT", "/exchanges/amq.direct", fanout),
        ("PUT", "/exchanges/amq.mine", {}),
        ("PUT", "/exchanges/", {}),
        ("DELETE", "/exchanges/amq.direct"),
        ("DELETE", "/exchanges/"),
        ("DELETE", "/exchanges/x"),
        ("DELETE", "/exchanges/x"),
    ) == ["204", "204", "409", "400", "204", "409", "403", "403", "403", "403", "204", "204"]


def test_bindings_are_added_listed_and_removed(client: ManagementClient) -> None:
    client.request("PUT", "/queues/q%26", {})
    client.request("PUT", "/exchanges/x", {"type": "headers"})
    plain = {"source": "x", "destination_queue": "q&", "binding_key": "a+b"}
    arguments = {"x-match": "all", "n": Long(1)}
    assert client.request("POST", "/bindings", plain).status == "204"
    assert client.request("POST", "/bindings", {**plain, "arguments": arguments}).status == "204"
    path = "/bindings?src=x&dstq=q%26&key=a%2Bb"
    listed = client.request("GET", path)
    assert listed.status == "200"
    first, second = listed.body
    assert first == {**plain, "arguments": {}, "location": "/bindings/src=x;dstq=q%26;key=a%2Bb;args="}
    assert second["arguments"] == arguments
    assert client.request("DELETE", second["location"]).status == "204"
    assert client.request("DELETE", second["location"]).status == "204"
    assert client.request("GET", path).body == [first]
    assert client.request("DELETE", first["location"]).status == "204"
    assert client.request("GET", path).body == []
    assert client.request("GET", "/bindings?src=&dstq=q%26&key=q%26").body[0]["source"] == ""


def test_bad_bindings_are_refused(client: ManagementClient) -> None:
    bound = {"source": "amq.direct", "destination_queue": "none", "binding_key": "k"}
    missing = client.request("POST", "/bindings", bound)
    assert (missing.status, missing.body) == ("400", "no queue 'none' in vhost '/'")
    assert statuses(
        client,
        ("POST", "/bindings", {**bound, "source": ""}),
        ("POST", "/bindings", {**bound, "destination_queue": ""}),
        ("POST", "/bindings", {"source": "amq.direct", "binding_key": "k"}),
        ("POST", "/bindings", {**bound, "other": 1.0}),
        ("GET", "/bindings?src=x&key=k"),
        ("DELETE", "/bindings/src=x;dst=q"),
    ) == ["403", "400", "400", "400", "400", "400"]


def test_exclusive_queue_belongs_to_the_connection(broker: LoneBroker10, client: ManagementClient) -> None:
    created = client.request("PUT", "/queues/mine", {"exclusive": True})
    assert created.status == "201"
    assert created.body["exclusive"] is True
    with ManagementClient(broker.amqp_port) as other:
        other.manage()
        refused = [
            other.request("DELETE", "/queues/mine"),
            other.request("PUT", "/queues/mine", {"exclusive": True}),
        ]
        assert [each.status for each in refused] == ["400", "400"]
        assert "exclusive access to locked queue 'mine'" in refused[0].body
    assert client.request("DELETE", "/queues/mine").status == "200"


def test_queue_limit_is_status_403(broker: LoneBroker10, client: ManagementClient) -> None:
    broker.operate(SetVhostLimits(DEFAULT_VHOST, {"max-queues": 1}))
    assert statuses(client, ("PUT", "/queues/a", {}), ("PUT", "/queues/b", {})) == ["201", "403"]


def test_missing_right_ends_the_session(broker: LoneBroker10) -> None:
    broker.add_user("reader", "reader")
    broker.operate(SetPermissions("reader", DEFAULT_VHOST, "^$", ".*", ".*"))
    with ManagementClient(broker.amqp_port, "reader") as client:
        client.manage()
        assert client.request("GET", "/queues/none").status == "404"
        client.send_request("PUT", "/queues/q", {})
        error = client.until(EndFrame).error
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
        assert error.description == "configure access to queue 'q' in vhost '/' refused for user 'reader'"


def test_requests_are_answered_in_their_order(client: ManagementClient) -> None:
    for number in range(7):
        client.send_request("PUT", f"/queues/q{number % 3}", {}, message_id=ULong(number))
    answers = [client.answer() for _ in range(7)]
    assert [answer.correlation_id for answer in answers] == list(range(7))
    assert [answer.status for answer in answers] == ["201"] * 3 + ["200"] * 4


def test_credit_for_requests_is_given_anew(client: ManagementClient) -> None:
    for _ in range(40):
        assert client.request("GET", "/queues/none").status == "404"


def test_credit_for_requests_is_eight(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        client.attach_requests()
        attached = client.expect(AttachFrame)
        assert attached.properties == {Symbol("paired"): True}
        assert client.expect(FlowFrame).link_credit == 8


@pytest.mark.parametrize("credit", [0, 2])
def test_request_without_credit_for_its_answer_ends(broker: LoneBroker10, credit: int) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.manage(credit)
        for _ in range(credit):
            assert client.request("GET", "/queues/none").status == "404"
        client.send_request("GET", "/queues/none")
        error = client.until(EndFrame).error
        assert error is not None
        assert error.condition == "amqp:precondition-failed"
        assert "insufficient credit (0)" in str(error.description)


def test_request_without_the_other_link_ends(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        client.attach_requests()
        client.expect(AttachFrame)
        client.expect(FlowFrame)
        client.send_request("GET", "/queues/q")
        error = client.expect(EndFrame).error
        assert error is not None
        assert error.description == "received transfer on half open management link pair"


@pytest.mark.parametrize("properties", [None, {}, {Symbol("paired"): False}])
def test_link_that_is_not_paired_ends_the_session(broker: LoneBroker10, properties: Any) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        client.attach_requests(properties=properties)
        error = client.expect(EndFrame).error
        assert error is not None
        assert error.condition == "amqp:invalid-field"


def test_second_link_of_the_same_half_ends_the_session(client: ManagementClient) -> None:
    client.send(
        AttachFrame(
            "pair", 5, True, source=SourceTerminus("/management"), properties={Symbol("paired"): True}
        )
    )
    error = client.until(EndFrame).error
    assert error is not None
    assert error.condition == "amqp:precondition-failed"


def test_pair_can_be_attached_again(client: ManagementClient) -> None:
    for handle in (REQUESTS, ANSWERS):
        client.send(DetachFrame(handle, True))
        assert client.expect(DetachFrame).error is None
    client.attach_requests()
    client.expect(AttachFrame)
    client.attach_answers()
    client.give_credit(1)
    assert client.request("GET", "/queues/none").status == "404"


def test_message_that_is_no_message_detaches_the_link(client: ManagementClient) -> None:
    client.send_octets(b"\x40")
    error = client.expect(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:decode-error"


def test_drain_ends_the_credit_behind_the_answer(client: ManagementClient) -> None:
    client.send_request("GET", "/queues/none")
    client.give_credit(5, drain=True)
    assert client.answer().status == "404"
    flow = client.expect(FlowFrame)
    assert (flow.link_credit, flow.delivery_count, flow.drain) == (0, 5, True)


def test_answers_wait_for_the_window_of_the_client(client: ManagementClient) -> None:
    client.give_credit(100, window=0)
    for number in range(3):
        client.send_request("PUT", f"/queues/q{number}", {})
    client.send(FlowFrame(0, 0, 3, 1000, echo=True))
    client.expect(FlowFrame)
    client.send(FlowFrame(0, 10, 3, 1000))
    assert [client.answer().status for _ in range(3)] == ["201"] * 3


def test_session_with_too_many_octets_of_requests_ends(client: ManagementClient) -> None:
    client.give_credit(100, window=0)
    body: dict[Any, Any] = {"arguments": {f"x{number}": "x" * 30_000 for number in range(4)}}
    for _ in range(3 + WAITING_BYTES_MAX // 120_000):
        client.send_request("PUT", "/queues/q", body)
    error = client.until(EndFrame).error
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "WAITING_BYTES_MAX" in str(error.description)


def test_answer_above_the_client_limit_ends_the_session(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        client.attach_requests()
        client.attach_answers(max_message_size=10)
        client.give_credit(1)
        client.send_request("GET", "/queues/none")
        error = client.until(EndFrame).error
        assert error is not None
        assert error.condition == "amqp:link:message-size-exceeded"


def test_token_of_a_user_with_a_password_is_ignored(client: ManagementClient) -> None:
    assert client.request("PUT", "/auth/tokens", b"token").status == "204"
    assert client.request("PUT", "/auth/tokens", "token").status == "400"


@pytest.mark.parametrize("why", [None, "it is another user's"])
def test_newer_token_is_accepted_or_closes(
    client: ManagementClient, monkeypatch: pytest.MonkeyPatch, why: str | None
) -> None:
    def renew(_connection: Any, token: bytes, answer: Any) -> bool:
        assert token == b"token"
        answer(why)
        return True

    monkeypatch.setattr(Amqp10Connection, "renew_token", renew)
    client.send_request("PUT", "/auth/tokens", b"token")
    if why is None:
        assert client.answer().status == "204"
        return
    error = client.until(CloseFrame).error
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert error.description == "credential update was refused: it is another user's"


def test_answers_have_a_limit(client: ManagementClient) -> None:
    client.request("PUT", "/queues/q", {})
    path = "/bindings?src=amq.direct&dstq=q&key=k"
    binding: dict[Any, Any] = {"source": "amq.direct", "destination_queue": "q", "binding_key": "k"}
    for number in range(ANSWER_BYTES_MAX // 15_000 + 1):
        arguments: dict[Any, Any] = {"n": Long(number), "x": "x" * 15_000}
        assert client.request("POST", "/bindings", {**binding, "arguments": arguments}).status == "204"
    refused = client.request("GET", path)
    assert refused.status == "400"
    assert "ANSWER_BYTES_MAX" in refused.body
    assert client.request("DELETE", "/queues/q").status == "200"


def test_unsettled_requests_are_accepted(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        client.attach_requests(snd_settle_mode=SenderSettleMode.UNSETTLED)
        client.attach_answers(snd_settle_mode=SenderSettleMode.MIXED)
        client.give_credit(1)
        client.send_request("GET", "/queues/none", is_settled=False)
        assert client.until(TransferFrame).settled
        disposition = client.until(DispositionFrame)
        assert (disposition.first, disposition.state) == (0, AcceptedState())


def test_large_answer_comes_in_frames_of_the_client(broker: LoneBroker10) -> None:
    arguments: dict[Any, Any] = {"x-text": "x" * 10_000}
    with ManagementClient(broker.amqp_port, max_frame_size=4096) as client:
        client.manage()
        assert (
            client.request("PUT", "/queues/q", {"arguments": arguments}).body["arguments"]["x-text"]
            == "x" * 10_000
        )


def test_command_in_a_snapshot_is_answered(broker: LoneBroker10, client: ManagementClient) -> None:
    assert client.request("PUT", "/queues/p", {}).status == "201"
    broker.skip()
    client.send_request("PUT", "/queues/q", {})
    broker.pass_some_time()
    broker.resume()
    assert client.answer().status == "201"
    assert client.request("PUT", "/queues/q", {}).status == "200"


def test_equal_declarations_need_no_entry(broker: LoneBroker10, client: ManagementClient) -> None:
    requests = [
        ("PUT", "/queues/q", {"arguments": {"x-queue-type": "quorum"}}),
        ("PUT", "/queues/own", {"exclusive": True, "durable": False}),
        ("PUT", "/exchanges/x", {"type": "topic"}),
        ("POST", "/bindings", {"source": "x", "destination_queue": "q", "binding_key": "k", "arguments": {}}),
    ]
    assert statuses(client, *requests) == ["201", "201", "204", "204"]
    before = broker.group.last_index
    assert statuses(client, *requests) == ["200", "200", "204", "204"]
    with ManagementClient(broker.amqp_port) as other:
        other.manage()
        before += 1  # the connection
        assert statuses(other, *requests[::2]) == ["200", "204"]
        assert broker.group.last_index == before
        assert other.request("PUT", "/queues/own", {"exclusive": True, "durable": False}).status == "400"
    assert broker.broker.counters.queues_declared == 5


def test_limit_of_channels_refuses_commands_only(broker: LoneBroker10, client: ManagementClient) -> None:
    broker.operate(SetUserLimits("guest", {"max-channels": 0}))
    refused = client.request("PUT", "/queues/q", {})
    assert refused.status == "400"
    assert "limit" in refused.body
    assert client.request("GET", "/queues/q").status == "404"
    broker.operate(SetUserLimits("guest", {}))
    assert client.request("PUT", "/queues/q", {}).status == "201"


def test_requests_before_the_end_of_the_session_are_carried_out(
    broker: LoneBroker10, client: ManagementClient
) -> None:
    for number in range(5):
        client.send_request("PUT", f"/queues/q{number}", {})
    client.send(EndFrame())
    client.until(EndFrame)
    broker.pass_some_time()
    assert len(broker.machine.vhosts[DEFAULT_VHOST].queues) == 5


def test_connection_that_ends_drops_its_requests(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.manage()
        for number in range(8):
            client.send_request("PUT", f"/queues/q{number}", {})
    broker.pass_some_time()
    assert not broker.broker.connections
    assert not broker.broker.sessions


def test_session_of_the_log_ends_with_the_connection(broker: LoneBroker10) -> None:
    with ManagementClient(broker.amqp_port) as client:
        client.manage()
        assert client.request("PUT", "/queues/q", {}).status == "201"
        assert broker.broker.sessions
    broker.pass_some_time()
    assert not broker.broker.sessions
