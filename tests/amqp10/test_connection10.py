"""The connection: login, open, limits, closing from both sides, and input of any kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.amqp10.conditions import Condition
from qq.amqp10.connection import (
    AHEAD_BYTES_MAX,
    AMQP_HEADER,
    SASL_HEADER,
    CloseRequested10,
    ConnectionFault10,
    LoginRequested,
    OpenRequested,
    Phase10,
    ServerConnection10,
    SessionBegun,
    Settings10,
)
from qq.amqp10.encoding import HEARTBEAT
from qq.amqp10.framing import StreamStage
from qq.amqp10.performatives import (
    AttachFrame,
    BeginFrame,
    CloseFrame,
    EndFrame,
    ErrorReply,
    FlowFrame,
    OpenFrame,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    TransferFrame,
)
from qq.amqp10.session import EndRequested, LinkRequested, SessionPhase
from tests.amqp10.amqp10_client import LOGIN, OPEN, PIPELINED, Client10
from tests.amqp10.amqp10_wire import frame, pieces_of

SASL = StreamStage.SASL


def new() -> ServerConnection10:
    return ServerConnection10(Settings10(), ("PLAIN", "ANONYMOUS"))


def output(server: ServerConnection10) -> bytes:
    octets = b"".join(server.out)
    server.out.clear()
    return octets


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_client_logs_in_and_opens_in_pieces_of_any_size(size: int) -> None:
    server, events = new(), list[Any]()
    for piece in pieces_of(PIPELINED + frame(BeginFrame(None, 0, 1, 1), 3), size):
        waiting = [*server.receive(piece)]
        while waiting:
            event = waiting.pop(0)
            events.append(event)
            if isinstance(event, LoginRequested):
                waiting += server.accept_login()
            elif isinstance(event, OpenRequested):
                waiting += server.accept_open()
    assert events[:2] == [
        LoginRequested("PLAIN", b"\0u\0p"),
        OpenRequested("/", OpenFrame("client", "vhost:/")),
    ]
    assert isinstance(events[2], SessionBegun)
    assert len(events) == 3
    assert server.phase is Phase10.OPEN
    assert output(server).startswith(SASL_HEADER + frame(SaslMechanisms(("PLAIN", "ANONYMOUS")), stage=SASL))


@pytest.mark.parametrize(
    "octets", [AMQP_HEADER, b"AMQP\2\1\0\0", b"GET / HTTP/1.1\r\n", b"\x16\3\1\2\0\1\0\1\xfc"]
)
def test_foreign_header_is_answered_with_ours(octets: bytes) -> None:
    server = new()
    assert server.receive(octets) == []
    assert output(server) == SASL_HEADER
    assert server.phase is Phase10.CLOSED


def test_refused_login_ends_the_connection() -> None:
    server = new()
    server.receive(SASL_HEADER + LOGIN)
    server.refuse_login()
    assert output(server).endswith(frame(SaslOutcome(SaslCode.AUTH), stage=SASL))
    assert server.phase is Phase10.CLOSED


def test_unknown_mechanism_ends_the_connection() -> None:
    server = new()
    assert server.receive(SASL_HEADER + frame(SaslInit("OTHER", b""), stage=SASL)) == []
    assert server.phase is Phase10.CLOSED


def test_client_without_initial_response_is_challenged() -> None:
    server = new()
    server.receive(SASL_HEADER)
    assert server.receive(frame(SaslInit("PLAIN"), stage=SASL)) == []
    assert output(server).endswith(frame(SaslChallenge(b""), stage=SASL))
    assert server.receive(frame(SaslResponse(b"\0u\0p"), stage=SASL)) == [LoginRequested("PLAIN", b"\0u\0p")]


def test_response_of_a_login_is_not_shown() -> None:
    assert "secret" not in repr(LoginRequested("PLAIN", b"\0u\0secret"))


def test_wrong_frame_before_open_ends_without_a_word() -> None:
    for octets in (
        frame(SaslResponse(b""), stage=SASL),
        frame(CloseFrame()),
        b"\0" * 8,
        b"\0\0\0\x0c\2\1\0\0abcd",
    ):
        server = new()
        server.receive(SASL_HEADER)
        output(server)
        assert server.receive(octets) == []
        assert output(server) == b""
        assert server.phase is Phase10.CLOSED


def test_octets_ahead_of_an_answer_are_bounded() -> None:
    server = new()
    server.receive(SASL_HEADER + LOGIN)
    for _ in range(AHEAD_BYTES_MAX // 1024):
        server.receive(bytes(1024))
        assert server.held_bytes <= AHEAD_BYTES_MAX
    assert server.phase is Phase10.LOGIN
    server.receive(b"x")
    assert server.phase is Phase10.CLOSED
    assert server.held_bytes == 0


@pytest.mark.parametrize(
    ("opened", "condition"),
    [
        (OpenFrame("c", max_frame_size=511), Condition.FRAME_SIZE_TOO_SMALL),
        (OpenFrame("c", idle_time_out=999), Condition.NOT_ALLOWED),
    ],
)
def test_open_with_an_impossible_limit_is_refused(opened: OpenFrame, condition: Condition) -> None:
    client = Client10(open_frame=frame(opened))
    assert client.opened == []
    ours, close = client.read()
    assert isinstance(ours, OpenFrame)
    assert close.error.condition == condition.value


def test_open_refused_by_the_shell_has_an_open_before_its_close() -> None:
    server = new()
    server.receive(SASL_HEADER + LOGIN + AMQP_HEADER + OPEN)
    server.accept_login()
    server.out.clear()
    error = ErrorReply("amqp:unauthorized-access", "no")
    server.fail(error)
    expected = frame(
        OpenFrame("qq", max_frame_size=131072, channel_max=63, idle_time_out=30000, properties={})
    )
    assert output(server) == expected + frame(CloseFrame(error))


@pytest.mark.parametrize(
    ("hostname", "vhost"), [(None, None), ("host", None), ("vhost:", ""), ("vhost:a/b", "a/b")]
)
def test_hostname_may_name_a_virtual_host(hostname: str | None, vhost: str | None) -> None:
    (event,) = Client10(open_frame=frame(OpenFrame("c", hostname))).opened
    assert event.vhost == vhost


def test_limits_of_the_client_apply() -> None:
    client = Client10(open_frame=frame(OpenFrame("c", max_frame_size=600, channel_max=2, idle_time_out=5000)))
    (ours,) = client.read()
    assert ours.channel_max == 2
    assert (client.server.frame_max, client.server.client_idle_ms) == (600, 5000)
    (fault,) = client.send(BeginFrame(None, 0, 1, 1), channel=3)
    assert fault.error.condition is Condition.FRAMING_ERROR
    assert fault.error.description == "channel number (3) exceeds maximum channel number (2)"


def test_close_of_the_client_is_answered_when_the_shell_is_ready() -> None:
    client = Client10()
    session = client.begin()
    error = ErrorReply("amqp:internal-error")
    assert client.send(CloseFrame(error)) == [CloseRequested10(error)]
    assert client.read() == []
    assert client.send(BeginFrame(None, 0, 1, 1)) == []
    session.end()
    client.server.closed()
    assert client.read() == [CloseFrame()]
    assert client.server.phase is Phase10.CLOSED


def test_close_of_the_server_waits_for_the_client() -> None:
    client = Client10()
    client.begin()
    error = ErrorReply("amqp:internal-error", "Connection forced: because")
    client.server.fail(error)
    client.server.fail(error)
    assert client.read() == [CloseFrame(error)]
    assert client.send(TransferFrame(0, 0, b"t"), 0, b"x") == []
    assert client.server.phase is Phase10.CLOSING
    assert client.send(CloseFrame()) == []
    assert client.server.phase is Phase10.CLOSED


@pytest.mark.parametrize(
    ("octets", "condition"),
    [
        (b"\0\0\0\7\2\0\0\0", Condition.FRAMING_ERROR),
        (b"\0\3\0\0\2\0\0\0", Condition.FRAMING_ERROR),
        (b"\0\0\0\x0c\4\0\0\0\0\0\0\0", Condition.FRAMING_ERROR),
        (b"\0\0\0\x0a\2\0\0\0\x41\x41", Condition.DECODE_ERROR),
        (b"\0\0\0\x0c\2\0\0\0\0\x53\x12\x45", Condition.INVALID_FIELD),
        (OPEN, Condition.ILLEGAL_STATE),
    ],
)
def test_invalid_frame_is_a_fault_of_the_connection(octets: bytes, condition: Condition) -> None:
    client = Client10()
    (fault,) = client.send_octets(octets + frame(CloseFrame()))
    assert isinstance(fault, ConnectionFault10)
    assert fault.error.condition is condition
    client.server.fail(ErrorReply(fault.error.condition.value, fault.error.description))
    assert client.server.phase is Phase10.CLOSING


def test_frame_for_a_channel_without_session_is_ignored() -> None:
    client = Client10()
    client.read()
    assert client.send(TransferFrame(0, 0, b"t"), 9, b"x") == []
    assert client.send(EndFrame(), 9) == []
    assert client.read() == []


def test_session_ends_from_either_side() -> None:
    client = Client10()
    session = client.begin(5)
    (event,) = client.send(EndFrame(), 5)
    assert event == EndRequested(session, None)
    assert client.read() == []
    session.ended()
    session.end()
    assert client.read() == [EndFrame()]
    session = client.begin(5)
    session.end(ErrorReply("x"))
    assert client.read() == [EndFrame(ErrorReply("x"))]
    assert client.send(AttachFrame("l", 0, role=True), 5) == []
    assert client.send(EndFrame(), 5) == []
    assert session.state is SessionPhase.ENDED
    assert client.server.sessions == []
    client.begin(5)


def test_windows_close_and_open_in_all_sessions() -> None:
    client = Client10()
    client.begin(0)
    client.begin(1)
    client.server.close_windows()
    client.server.close_windows()
    assert [flow.incoming_window for flow in client.read()] == [0, 0]
    client.send(BeginFrame(None, 0, 1, 1), 2)
    assert [begin.incoming_window for begin in client.read()] == [0]
    client.server.open_windows()
    assert [flow.incoming_window for flow in client.read()] == [2048] * 3


def test_heartbeat_is_sent_while_the_connection_is_open() -> None:
    client = Client10()
    client.read()
    client.server.heartbeat()
    assert output(client.server) == HEARTBEAT
    assert client.send_octets(HEARTBEAT) == []


def test_unasked_answer_is_an_error_of_the_shell() -> None:
    server = new()
    for answer in (server.accept_login, server.refuse_login, server.accept_open, server.closed):
        with pytest.raises(ValueError, match="the connection is in phase SASL_HEADER"):
            answer()


FRAMES = st.sampled_from(
    [
        frame(BeginFrame(None, 0, 1, 1)),
        frame(EndFrame()),
        frame(AttachFrame("s", 0, role=False, initial_delivery_count=0)),
        frame(AttachFrame("r", 1, role=True)),
        frame(FlowFrame(0, 10, 0, 10, 1, 0, 5, drain=True, echo=True)),
        frame(FlowFrame(0, 10, 0, 10, 0, 0, 5, echo=True)),
        frame(TransferFrame(0, 0, b"t", more=True), payload=b"x"),
        frame(TransferFrame(0, 0, b"t", aborted=True)),
        frame(TransferFrame(0, 0, b"t"), payload=b"x"),
        frame(TransferFrame(1, 0, b"t"), payload=b"x"),
        frame(CloseFrame()),
    ]
)


def answer(server: ServerConnection10, events: list[Any]) -> None:
    """Answer events as a shell does, perhaps after the session or link has ended."""
    for event in events:
        match event:
            case LinkRequested(link):
                answer(server, link.accept())
            case ConnectionFault10(error):
                server.fail(ErrorReply(error.condition.value))
            case CloseRequested10():
                server.closed()
            case EndRequested(session, _):
                session.ended()
            case _ if hasattr(event, "error") and hasattr(event, "session"):
                event.session.end(ErrorReply(event.error.condition.value))
            case _ if hasattr(event, "link") and hasattr(event, "is_closed"):
                event.link.detached()
            case _ if hasattr(event, "link") and hasattr(event, "error"):
                event.link.detach(ErrorReply(event.error.condition.value))
            case _ if hasattr(event, "is_drain"):
                event.link.deliver(0, b"", [b"m", b"n"])
                event.link.drained(0)
            case _:
                pass


@given(st.lists(FRAMES | st.binary(max_size=30), max_size=12))
def test_any_input_is_answered_or_ends_the_connection(octets: list[bytes]) -> None:
    client = Client10()
    for piece in octets:
        answer(client.server, client.send_octets(piece))
    if client.server.phase is Phase10.OPEN:
        client.server.fail(ErrorReply("amqp:internal-error"))
    assert b"\0\x53\x18" in b"".join(client.server.out)
