import struct
from typing import Any

import pytest
from pamqp import commands, encode

from qq.amqp.connection import (
    AHEAD_BYTES_MAX,
    ChannelCloseRequested,
    ChannelOpened,
    CloseRequested,
    LoginAttempt,
    Phase,
    SecretRenewed,
    ServerConnection,
    Settings,
    VhostRequested,
)
from qq.amqp.framing import Acks, ChannelFault, Fault, Method, Publishes
from qq.errors import AmqpError, ChannelError, ConnectionFault, ReplyCode, amqp_error
from tests.amqp.amqp_wire import (
    PROTOCOL_HEADER,
    Basic,
    Channel,
    Client,
    Connection,
    Queue,
    body_frames,
    connected,
    data_to_send,
    header_frame,
    message,
    method,
    open_channel,
    open_vhost,
    pieces,
    publish,
    raw,
    start_ok,
    tune_ok,
)

NOT_FOUND = ChannelError(ReplyCode.NOT_FOUND, "no queue 'q' in vhost '/'", 50, 10)


def names(frames: list[Any]) -> list[str]:
    return [frame.name for frame in frames]


def close_of(frames: list[Any]) -> tuple[int, str, int, int]:
    """Fields of the only answer: a close."""
    assert names(frames) in (["Connection.Close"], ["Channel.Close"])
    close = frames[0]
    return close.reply_code, close.reply_text, close.class_id, close.method_id


def server_at(phase: Phase, capabilities: dict[str, Any] | None = None) -> ServerConnection:
    """Return a server in a phase, without an answer of the shell."""
    server = ServerConnection(Settings())
    server.receive(PROTOCOL_HEADER)
    if phase is not Phase.START:
        server.receive(start_ok(capabilities))
    if phase is Phase.VHOST:
        server.accept_login()
        server.receive(tune_ok() + open_vhost())
    data_to_send(server)
    assert server.phase is phase
    return server


class TestHandshake:
    def test_a_client_is_led_to_the_open_connection(self) -> None:
        client = Client(Settings(product="Rabbit", version="4.2.0", cluster_name="blue"))
        (start,) = client.send(PROTOCOL_HEADER)
        assert (start.version_major, start.version_minor) == (0, 9)
        assert (start.mechanisms, start.locales) == ("AMQPLAIN PLAIN", "en_US")
        assert start.server_properties["product"] == "Rabbit"
        assert start.server_properties["version"] == "4.2.0"
        assert start.server_properties["cluster_name"] == "blue"
        assert set(start.server_properties) == {
            "capabilities",
            "cluster_name",
            "copyright",
            "information",
            "platform",
            "product",
            "version",
        }
        assert start.server_properties["capabilities"] == {
            "authentication_failure_close": True,
            "basic.nack": True,
            "connection.blocked": True,
            "consumer_cancel_notify": True,
            "consumer_priorities": True,
            "direct_reply_to": True,
            "exchange_exchange_bindings": True,
            "live_prefetch": True,
            "publisher_deduplication": True,
            "per_consumer_qos": True,
            "publisher_confirms": True,
        }
        (tune,) = client.send(start_ok({"consumer_cancel_notify": True, "basic.nack": False}))
        assert dict(tune) == {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60}
        assert client.send(tune_ok(100, 16384, 5)) == []
        assert names(client.send(open_vhost("/"))) == ["Connection.OpenOk"]
        server = client.server
        assert (server.channel_max, server.frame_max, server.heartbeat_s) == (100, 16384, 5)
        assert client.take() == [LoginAttempt("guest", b"guest", "PLAIN"), VhostRequested("/")]
        assert server.client_properties["product"] == "test"
        assert server.capabilities.consumer_cancel_notify
        assert not server.capabilities.basic_nack
        assert not server.capabilities.authentication_failure_close

    def test_handshake_and_publish_may_be_sent_ahead_in_pieces(self) -> None:
        large = bytes(20_000)  # a frame that is too large for the handshake and right after it
        stream = b"".join(
            (
                PROTOCOL_HEADER,
                start_ok(),
                tune_ok(),
                open_vhost(),
                open_channel(),
                method(1, Basic.Publish(routing_key="q")),
                message(1, large, part=131_064),
            )
        )
        for size in (1, 7, 100, len(stream)):
            client = Client()
            answers = [name for piece in pieces(stream, [size]) for name in names(client.send(piece))]
            assert answers == ["Connection.Start", "Connection.Tune", "Connection.OpenOk", "Channel.OpenOk"]
            assert client.take()[-1].messages == [message(1, large, part=131_064)]

    @pytest.mark.parametrize("size", [1, 8, 100])
    def test_client_of_0_9_is_served_like_a_client_of_0_9_1(self, size: int) -> None:
        client = Client()
        stream = b"AMQP\x01\x01\x00\x09" + start_ok()
        answers = [answer for piece in pieces(stream, [size]) for answer in client.send(piece)]
        assert names(answers) == ["Connection.Start", "Connection.Tune"]
        assert (answers[0].version_major, answers[0].version_minor) == (0, 9)

    @pytest.mark.parametrize(
        "data", [b"GET / HTTP/1.1", b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x09\x01", b"\x16\x03\x01"]
    )
    def test_unsupported_protocol_is_answered_with_the_amqp_header(self, data: bytes) -> None:
        server = ServerConnection(Settings())
        assert server.receive(data) == []
        assert data_to_send(server) == PROTOCOL_HEADER
        assert server.phase is Phase.CLOSED
        assert server.receive(PROTOCOL_HEADER) == []

    def test_half_a_header_is_waited_for(self) -> None:
        server = ServerConnection(Settings())
        for octet in PROTOCOL_HEADER[:-1]:
            server.receive(bytes([octet]))
            assert data_to_send(server) == b""

    def test_amqplain_is_understood(self) -> None:
        table = encode.field_table({"LOGIN": "anna", "PASSWORD": "sécret"})[4:]
        client = Client()
        client.send(PROTOCOL_HEADER, method(0, Connection.StartOk({}, "AMQPLAIN", table.decode("latin-1"))))
        # marshalled as UTF-8, hence made by hand
        server = server_at(Phase.START)
        arguments = b"\0\0\0\0" + b"\x08AMQPLAIN" + struct.pack(">I", len(table)) + table + b"\x05en_US"
        assert server.receive(raw(1, 0, b"\0\x0a\0\x0b" + arguments)) == [
            LoginAttempt("anna", "sécret".encode(), "AMQPLAIN")
        ]

    @pytest.mark.parametrize(
        ("mechanism", "response", "error"),
        [
            ("PLAIN", "guest guest", (502, "SYNTAX_ERROR - response invalid", 10, 11)),
            ("PLAIN", "someone\0guest\0guest", (502, "SYNTAX_ERROR - response invalid", 10, 11)),
            ("PLAIN", "\0guest\0guest\0", (502, "SYNTAX_ERROR - response invalid", 10, 11)),
            ("AMQPLAIN", "\x05LOGIN", (502, "SYNTAX_ERROR - response invalid", 10, 11)),
            (
                "AMQPLAIN",
                "\x05LOGINS\0\0\0\x01a",
                (502, "SYNTAX_ERROR - AMQPLAIN auth info is missing LOGIN or PASSWORD field", 10, 11),
            ),
            ("EXTERNAL", "", (503, "COMMAND_INVALID - invalid authentication mechanism 'EXTERNAL'", 10, 11)),
            ("KERBEROS", "", (503, "COMMAND_INVALID - unknown authentication mechanism 'KERBEROS'", 10, 11)),
        ],
    )
    def test_a_response_that_cannot_be_read_closes_the_connection(
        self, mechanism: str, response: str, error: tuple[int, str, int, int]
    ) -> None:
        client = Client()
        client.send(PROTOCOL_HEADER)
        assert close_of(client.send(method(0, Connection.StartOk({}, mechanism, response)))) == error

    def test_refused_login_closes_a_client_with_the_capability(self) -> None:
        server = server_at(Phase.LOGIN, {"authentication_failure_close": True})
        server.refuse_login()
        assert (
            b"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
            b"For details see the broker logfile." in data_to_send(server)
        )
        assert server.phase is Phase.CLOSING
        server.receive(method(0, Connection.CloseOk()))
        assert server.phase is Phase.CLOSED

    def test_refused_login_sends_no_data_to_an_old_client(self) -> None:
        server = server_at(Phase.LOGIN)
        server.refuse_login()
        assert data_to_send(server) == b""
        assert server.phase is Phase.CLOSED

    @pytest.mark.parametrize(
        ("tuning", "text"),
        [
            (
                (2047, 4095),
                "NOT_ALLOWED - negotiated frame_max = 4095 is lower than the minimum allowed value (4096)",
            ),
            (
                (2047, 200_000),
                "NOT_ALLOWED - negotiated frame_max = 200000 is higher than the maximum allowed value (131072)",
            ),
            (
                (2047, 0),
                "NOT_ALLOWED - negotiated frame_max = 0 is higher than the maximum allowed value (131072)",
            ),
            (
                (2048, 131_072),
                "NOT_ALLOWED - negotiated channel_max = 2048 is higher than the maximum allowed value (2047)",
            ),
            (
                (0, 131_072),
                "NOT_ALLOWED - negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
            ),
        ],
    )
    def test_tuning_outside_the_limits_is_refused(self, tuning: tuple[int, int], text: str) -> None:
        client = Client()
        client.send(PROTOCOL_HEADER, start_ok())
        assert close_of(client.send(tune_ok(*tuning))) == (530, text, 10, 30)

    @pytest.mark.parametrize(("offered_s", "chosen_s"), [(60, 0), (60, 5), (60, 600), (0, 0), (0, 7)])
    def test_the_client_chooses_the_interval_of_heartbeats(self, offered_s: int, chosen_s: int) -> None:
        client = Client(Settings(heartbeat_s=offered_s))
        (_, tune) = client.send(PROTOCOL_HEADER, start_ok())
        assert tune.heartbeat == offered_s
        assert client.send(tune_ok(heartbeat_s=chosen_s)) == []
        assert client.server.heartbeat_s == chosen_s

    def test_client_with_a_certificate_may_log_in_with_external(self) -> None:
        server = ServerConnection(Settings(), "CN=anna,O=orders")
        server.receive(PROTOCOL_HEADER)
        assert b"AMQPLAIN PLAIN EXTERNAL" in data_to_send(server)
        [attempt] = server.receive(method(0, Connection.StartOk({}, "EXTERNAL", "")))
        assert attempt == LoginAttempt("CN=anna,O=orders", None, "EXTERNAL")
        server.accept_login()
        assert server.phase is Phase.TUNE

    def test_client_with_a_certificate_may_log_in_with_plain(self) -> None:
        server = ServerConnection(Settings(), "CN=anna,O=orders")
        [attempt] = server.receive(PROTOCOL_HEADER + start_ok())
        assert attempt == LoginAttempt("guest", b"guest", "PLAIN")

    def test_passwords_are_in_no_representation(self) -> None:
        [attempt] = ServerConnection(Settings()).receive(
            PROTOCOL_HEADER + start_ok(response="\0anna\0hidden-word")
        )
        client = connected()
        client.send(method(0, Connection.UpdateSecret("hidden-word", "renewal")))
        for event in (attempt, *client.take()):
            assert "hidden" not in repr(event)
            assert "hidden" not in f"{event}"

    def test_a_vhost_can_be_refused(self) -> None:
        server = server_at(Phase.VHOST)
        server.fail(ConnectionFault(ReplyCode.NOT_ALLOWED, "vhost x not found", 10, 40))
        assert b"NOT_ALLOWED - vhost x not found" in data_to_send(server)
        assert server.phase is Phase.CLOSING

    def test_method_in_the_wrong_phase_is_refused(self) -> None:
        client = Client()
        client.send(PROTOCOL_HEADER)
        error = (504, "CHANNEL_ERROR - unexpected method in connection state starting", 10, 40)
        assert close_of(client.send(open_vhost())) == error

    def test_a_channel_before_the_connection_is_open_is_refused(self) -> None:
        client = Client()
        client.send(PROTOCOL_HEADER)
        error = (505, "UNEXPECTED_FRAME - unexpected frame on channel 1 in connection state starting", 0, 0)
        assert close_of(client.send(publish())) == error

    def test_frames_of_4096_octets_may_be_agreed_on(self) -> None:
        client = Client(Settings(frame_max=4096))
        (_, tune) = client.send(PROTOCOL_HEADER, start_ok())
        assert tune.frame_max == 4096
        assert names(client.send(tune_ok(frame_max=4096), open_vhost())) == ["Connection.OpenOk"]
        assert client.server.frame_max == 4096
        # RabbitMQ does not count the envelope.
        assert close_of(client.send(raw(1, 0, bytes(4097))))[0] == 501

    @pytest.mark.parametrize("offered", [4096, 131_072])
    def test_the_frame_limit_before_tuning_is_8192(self, offered: int) -> None:
        client = Client(Settings(frame_max=offered))
        client.send(PROTOCOL_HEADER)
        assert names(client.send(method(0, Connection.StartOk({"k": "v" * 8000}, "PLAIN", "\0u\0p")))) == [
            "Connection.Tune"
        ]
        assert close_of(client.send(raw(1, 0, bytes(8193))))[0] == 501
        client.send(method(0, Connection.CloseOk()))
        assert client.server.phase is Phase.CLOSING

    def test_a_client_may_close_during_the_handshake(self) -> None:
        client = Client()
        client.send(PROTOCOL_HEADER, start_ok())
        assert names(client.send(method(0, Connection.Close(200, "bye", 0, 0)))) == ["Connection.CloseOk"]
        assert client.server.phase is Phase.CLOSED

    @pytest.mark.parametrize("phase", [Phase.LOGIN, Phase.VHOST])
    def test_input_ahead_of_an_answer_is_limited(self, phase: Phase) -> None:
        server = server_at(phase)
        assert server.receive(bytes(AHEAD_BYTES_MAX)) == []
        (fault,) = server.receive(b"x")
        assert fault.error.code == ReplyCode.RESOURCE_ERROR
        server.fail(fault.error)
        assert server.phase is Phase.CLOSING

    def test_answer_in_the_wrong_phase_raises_value_error(self) -> None:
        with pytest.raises(ValueError, match="in phase HEADER, not LOGIN"):
            ServerConnection(Settings()).accept_login()
        with pytest.raises(ValueError, match="in phase LOGIN, not VHOST"):
            server_at(Phase.LOGIN).accept_vhost()
        with pytest.raises(ValueError, match="in phase OPEN, not CLOSE_REQUESTED"):
            connected().server.closed()


class TestChannels:
    def test_frames_of_an_open_channel_become_events(self) -> None:
        client = connected()
        client.send(publish(), method(1, Basic.Ack(1)), method(1, Queue.Declare(queue="q")))
        assert [type(event) for event in client.take()] == [Publishes, Acks, Method]

    def test_channel_may_be_used_before_open_ok(self) -> None:
        client = connected(channels=())
        client.send(open_channel(5), publish(5))
        assert [type(event) for event in client.take()] == [ChannelOpened, Publishes]

    def test_a_channel_number_is_free_after_close_ok(self) -> None:
        client = connected()
        assert names(client.send(method(1, Channel.Close(200, "bye", 0, 0)))) == ["Channel.CloseOk"]
        assert names(client.send(open_channel(1), publish(1))) == ["Channel.OpenOk"]
        assert [type(event) for event in client.take()] == [ChannelCloseRequested, ChannelOpened, Publishes]

    def test_frames_on_a_failed_channel_are_dropped_until_close_ok(self) -> None:
        client = connected()
        client.server.fail_channel(1, NOT_FOUND)
        assert close_of(client.received()) == (404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)
        assert client.send(publish(), method(1, Basic.Ack(1)), method(1, Queue.Declare())) == []
        assert client.take() == []
        client.send(method(1, Channel.CloseOk()))
        assert client.server.channels == []
        assert names(client.send(open_channel(), publish())) == ["Channel.OpenOk"]
        assert [type(event) for event in client.take()] == [ChannelOpened, Publishes]

    def test_channel_is_not_opened_again_before_close_ok(self) -> None:
        client = connected()
        client.server.fail_channel(1, NOT_FOUND)
        client.received()
        close = close_of(client.send(open_channel()))
        assert close == (504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10)

    def test_message_begun_right_after_close_ok_and_open_is_kept(self) -> None:
        client = connected()
        client.server.fail_channel(1, NOT_FOUND)
        client.send(
            method(1, Channel.CloseOk()), open_channel(), method(1, Basic.Publish()), header_frame(1, 3)
        )
        client.send(body_frames(1, b"abc")[0])
        assert [type(event) for event in client.take()] == [ChannelOpened, Publishes]

    def test_half_a_message_on_a_closing_channel_is_forgotten(self) -> None:
        client = connected()
        client.send(method(1, Basic.Publish()), header_frame(1, 6), body_frames(1, b"abc")[0])
        client.server.fail_channel(1, NOT_FOUND)
        assert client.server.held_bytes == 0
        client.received()
        client.send(body_frames(1, b"def")[0], method(1, Channel.CloseOk()), open_channel(), publish())
        assert [type(event) for event in client.take()] == [ChannelOpened, Publishes]

    def test_both_sides_may_close_a_channel_at_once(self) -> None:
        client = connected()
        client.server.fail_channel(1, NOT_FOUND)
        client.received()
        assert names(client.send(method(1, Channel.Close(200, "bye", 0, 0)))) == ["Channel.CloseOk"]
        assert client.server.channels == [1]
        client.send(method(1, Channel.CloseOk()))
        assert client.server.channels == []
        assert client.take() == []

    def test_channel_closed_by_both_sides_gets_close_and_close_ok(self) -> None:
        server = connected().server
        assert server.receive(method(1, Channel.Close(200, "bye", 0, 0)) + publish()) == [
            ChannelCloseRequested(1, 200, "bye")
        ]
        server.fail_channel(1, NOT_FOUND)
        close = Channel.Close(NOT_FOUND.code, NOT_FOUND.text, 50, 10)
        sent = data_to_send(server)
        assert sent == method(1, close) + method(1, Channel.CloseOk())
        server.channel_closed(1)
        server.fail_channel(1, NOT_FOUND)
        assert data_to_send(server) == b""
        assert server.channels == [1]
        server.receive(method(1, Channel.CloseOk()))
        assert server.channels == []

    def test_a_channel_is_closed_once_for_the_client(self) -> None:
        server = connected().server
        server.receive(method(1, Channel.Close(200, "bye", 0, 0)))
        server.channel_closed(1)
        server.channel_closed(1)
        server.fail_channel(1, NOT_FOUND)
        assert data_to_send(server) == method(1, Channel.CloseOk())
        assert server.channels == []

    def test_a_message_that_is_too_large_closes_the_channel_only(self) -> None:
        client = connected(Settings(message_bytes_max=10), channels=(1, 2))
        answers = client.send(publish(1, b"x" * 11), publish(1), publish(2))
        assert close_of(answers)[:2] == (
            406,
            "PRECONDITION_FAILED - message size 11 is larger than configured max size 10",
        )
        assert [type(event) for event in client.take()] == [ChannelFault, Publishes]

    def test_the_clients_cancel_ok_is_ignored(self) -> None:
        client = connected()
        assert client.send(method(1, Basic.CancelOk("tag"))) == []
        assert client.take() == []

    def test_as_many_channels_as_were_agreed_on_can_be_open(self) -> None:
        client = connected(channels=range(1, 4), channel_max=3)
        assert client.server.channels == [1, 2, 3]

    def test_the_limit_is_of_channels_and_not_of_their_numbers(self) -> None:
        client = connected(channels=(7, 65_535), channel_max=2)
        client.send(method(7, Channel.Close(200, "bye", 0, 0)))
        client.send(open_channel(9))
        assert client.server.channels == [65_535, 9]

    def test_channel_without_close_ok_counts_against_channel_max(self) -> None:
        client = connected(channels=(1, 2), channel_max=2)
        client.server.fail_channel(1, NOT_FOUND)
        client.received()
        assert close_of(client.send(open_channel(3)))[0] == 530

    def test_channel_max_0_allows_3000_channels(self) -> None:
        client = connected(Settings(channel_max=0), channels=range(1, 3001), channel_max=0)
        assert len(client.server.channels) == 3000
        assert client.server.phase is Phase.OPEN


TOO_MANY = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
CONNECTION_ERRORS = {
    "publish on an unopened channel": (
        publish(2),
        (504, "CHANNEL_ERROR - expected 'channel.open'", 60, 40),
    ),
    "ack on an unopened channel": (
        method(2, Basic.Ack(1)),
        (504, "CHANNEL_ERROR - expected 'channel.open'", 60, 80),
    ),
    "method on an unopened channel": (
        method(2, Queue.Declare()),
        (504, "CHANNEL_ERROR - expected 'channel.open'", 50, 10),
    ),
    "close of an unopened channel": (
        method(2, Channel.Close(200, "", 0, 0)),
        (504, "CHANNEL_ERROR - expected 'channel.open'", 20, 40),
    ),
    "close-ok of an unopened channel": (
        method(2, Channel.CloseOk()),
        (504, "CHANNEL_ERROR - expected 'channel.open'", 20, 41),
    ),
    "second open": (open_channel(1), (504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10)),
    "open behind close without waiting": (
        method(1, Channel.Close(200, "", 0, 0)) + open_channel(1),
        (504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10),
    ),
    "channel above channel_max": (
        open_channel(2) + open_channel(5) + open_channel(6),
        (530, TOO_MANY, 0, 0),
    ),
    "close-ok that nobody waits for": (
        method(1, Channel.CloseOk()),
        (503, "COMMAND_INVALID - unimplemented method", 20, 41),
    ),
    "connection method on a channel": (
        method(1, Connection.Close(200, "", 0, 0)),
        (503, "COMMAND_INVALID - unimplemented method", 10, 50),
    ),
    "channel method on channel 0": (
        open_channel(0),
        (504, "CHANNEL_ERROR - unexpected method in connection state running", 20, 10),
    ),
    "publish on channel 0": (
        publish(0),
        (504, "CHANNEL_ERROR - unexpected method in connection state running", 60, 40),
    ),
    "publish on channel 0 without its content": (
        method(0, Basic.Publish()),
        (504, "CHANNEL_ERROR - unexpected method in connection state running", 60, 40),
    ),
    "content on channel 0": (
        header_frame(0, 3),
        (505, "UNEXPECTED_FRAME - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,3,0,0>>", 0, 0),
    ),
    "handshake method on an open connection": (
        tune_ok(),
        (504, "CHANNEL_ERROR - unexpected method in connection state running", 10, 31),
    ),
    "close-ok of an open connection": (
        method(0, Connection.CloseOk()),
        (504, "CHANNEL_ERROR - unexpected method in connection state running", 10, 51),
    ),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
def test_violation_closes_the_connection_with_its_code_and_text(name: str) -> None:
    data, error = CONNECTION_ERRORS[name]
    server = connected(channel_max=3).server
    events = server.receive(publish() + data + publish())
    assert isinstance(events[0], Publishes)
    fault = events[-1]
    assert isinstance(fault, Fault)
    assert (fault.error.code, fault.error.text, fault.error.class_id, fault.error.method_id) == error
    server.fail(fault.error)
    assert server.phase is Phase.CLOSING
    assert server.receive(publish() + data.replace(method(0, Connection.CloseOk()), b"")) == []
    server.receive(method(0, Connection.CloseOk()))
    assert server.phase is Phase.CLOSED


def test_equal_client_properties_are_shared() -> None:
    one, other = connected().server, connected().server
    assert one.client_properties is other.client_properties
    different = connected(capabilities={"basic.nack": True}).server
    assert (one.capabilities.basic_nack, different.capabilities.basic_nack) == (False, True)


class TestClosing:
    def test_the_clients_close_is_answered_when_the_shell_is_ready(self) -> None:
        server = connected().server
        assert server.receive(publish() + method(0, Connection.Close(200, "bye", 0, 0)) + publish())[1:] == [
            CloseRequested(200, "bye")
        ]
        assert server.receive(b"whatever") == []
        server.fail(NOT_FOUND)
        assert data_to_send(server) == b""
        server.closed()
        assert data_to_send(server) == method(0, Connection.CloseOk())
        assert server.phase is Phase.CLOSED
        assert server.receive(b"whatever") == []

    def test_connection_ignores_all_but_close_ok_after_a_fault(self) -> None:
        client = connected()
        client.server.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, "node is shutting down"))
        assert close_of(client.received()) == (320, "CONNECTION_FORCED - node is shutting down", 0, 0)
        client.server.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, "again"))
        client.server.fail_channel(1, NOT_FOUND)
        client.server.block("low on memory")
        assert client.send(publish(), open_channel(2), method(1, Basic.Ack(1))) == []
        assert client.take() == []
        client.send(method(0, Connection.CloseOk()))
        assert client.server.phase is Phase.CLOSED

    def test_both_sides_may_close_the_connection_at_once(self) -> None:
        client = connected()
        client.server.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, "node is shutting down"))
        client.received()
        assert names(client.send(method(0, Connection.Close(200, "bye", 0, 0)))) == ["Connection.CloseOk"]
        client.send(method(0, Connection.CloseOk()))
        assert client.server.phase is Phase.CLOSED

    def test_a_stream_without_frames_cannot_answer(self) -> None:
        client = connected()
        assert close_of(client.send(raw(3, 1, b"x", b"y")))[0] == 501
        client.send(method(0, Connection.CloseOk()))
        assert client.server.phase is Phase.CLOSING

    def test_close_text_is_cut_to_255_octets(self) -> None:
        client = connected()
        client.server.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, "ü" * 300))
        text = close_of(client.received())[1]
        assert text.endswith("...")
        assert len(text.encode()) <= 255


class TestExtensions:
    def test_update_secret_is_reported_and_answered(self) -> None:
        client = connected()
        assert client.send(method(0, Connection.UpdateSecret("token", "renewal"))) == []
        assert client.take() == [SecretRenewed(b"token")]
        client.server.accept_secret()
        assert names(client.received()) == ["Connection.UpdateSecretOk"]
        client.server.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, "gone"))
        client.received()
        client.server.accept_secret()
        assert client.received() == []

    def test_blocked_is_sent_only_to_clients_with_the_capability(self) -> None:
        client = connected(capabilities={"connection.blocked": True})
        client.server.block("low on memory")
        client.server.unblock()
        blocked, unblocked = client.received()
        assert (blocked.name, blocked.reason, unblocked.name) == (
            "Connection.Blocked",
            "low on memory",
            "Connection.Unblocked",
        )
        client = connected()
        client.server.block("low on memory")
        client.server.unblock()
        assert client.received() == []


class TestErrors:
    def test_reply_code_decides_between_channel_and_connection_error(self) -> None:
        assert isinstance(amqp_error(404, "no queue 'q' in vhost '/'"), ChannelError)
        assert isinstance(amqp_error(540, "immediate=true"), ConnectionFault)

    def test_a_text_in_wire_form_is_kept(self) -> None:
        error: AmqpError = amqp_error(404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)
        assert error.text == NOT_FOUND.text == str(error)


def test_pamqp_has_all_commands_that_a_server_sends() -> None:
    assert {commands.Connection.Blocked, commands.Connection.UpdateSecretOk} <= set(
        commands.INDEX_MAPPING.values()
    )
