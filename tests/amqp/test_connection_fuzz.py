"""Any bytes in any state: no exception, phases in order, bounded memory, and only frames in the output."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from qq.amqp.connection import (
    AHEAD_BYTES_MAX,
    ChannelCloseRequested,
    CloseRequested,
    Event,
    LoginAttempt,
    Phase,
    ServerConnection,
    Settings,
    VhostRequested,
)
from qq.amqp.framing import FRAME_MAX_UNTUNED, UNFINISHED_BYTES_MIN, ChannelFault, Fault
from qq.errors import ChannelError, ConnectionFault, ReplyCode
from tests.amqp.amqp_wire import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    Basic,
    Channel,
    Connection,
    Queue,
    body_frames,
    data_to_send,
    header_frame,
    method,
    open_channel,
    open_vhost,
    pieces,
    publish,
    raw,
    start_ok,
    tune_ok,
)

LIMITS = Settings(channel_max=4, frame_max=16_384, message_bytes_max=1000)
HELD_MAX = UNFINISHED_BYTES_MIN + AHEAD_BYTES_MAX + LIMITS.frame_max
"""Bytes by the settings: unfinished messages, frames sent ahead, a frame."""

NEXT: dict[Phase, set[Phase]] = {
    Phase.HEADER: {Phase.START},
    Phase.START: {Phase.LOGIN},
    Phase.LOGIN: {Phase.TUNE},
    Phase.TUNE: {Phase.OPEN_VHOST},
    Phase.OPEN_VHOST: {Phase.VHOST},
    Phase.VHOST: {Phase.OPEN},
    Phase.OPEN: set(),
    Phase.CLOSE_REQUESTED: {Phase.CLOSED},
    Phase.CLOSING: {Phase.CLOSED},
    Phase.CLOSED: set(),
}
"""Where a phase leads when all goes well; each but the first and those behind also to an end."""
ENDS = {Phase.CLOSE_REQUESTED, Phase.CLOSING, Phase.CLOSED}


def reachable(phase: Phase) -> set[Phase]:
    """Return every phase that may follow, in any number of calls."""
    found, new = {phase}, {phase}
    while new:
        new = {later for one in new for later in NEXT[one] | (ENDS if one not in ENDS else set())} - found
        found |= new
    return found


class Shell:
    """In place of the broker: gives scripted answers, at once or later, and checks invariants each time."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self.server = ServerConnection(LIMITS)
        self.events: list[Event] = []
        self._answers = answers
        self._requests: list[Event] = []
        self._was = Phase.HEADER
        self._sent = bytearray()
        self._received = 0

    def receive(self, data: bytes) -> None:
        was_closing = self.server.phase in ENDS
        events = self.server.receive(data)
        self._received += len(data)
        assert not (was_closing and events)
        self._take(events)
        waits = self.server.phase in {Phase.LOGIN, Phase.VHOST}
        assert self.server.held_bytes <= min(AHEAD_BYTES_MAX if waits else HELD_MAX, self._received)
        self._check()

    def answer(self) -> None:
        """Answer the pending requests."""
        requests, self._requests = self._requests, []
        for event in requests:
            self._take(self._carry_out(event))
            self._check()

    def _take(self, events: list[Event]) -> None:
        assert not any(isinstance(event, Fault) for event in events[:-1])
        for event in events:
            self.events.append(event)
            if isinstance(event, Fault) or self._answers():  # a fault is no question
                self._take(self._carry_out(event))
            else:
                self._requests.append(event)

    def _carry_out(self, event: Event) -> list[Event]:
        server, yes = self.server, self._answers()
        match event:
            case LoginAttempt() if server.phase is Phase.LOGIN:
                return server.accept_login() if yes else server.refuse_login() or []
            case VhostRequested() if server.phase is Phase.VHOST:
                return server.accept_vhost() if yes else server.fail(FORCED) or []
            case ChannelCloseRequested(channel):
                if not yes:
                    server.fail_channel(channel, FAILED)
                server.channel_closed(channel)
            case ChannelFault(channel, error):
                server.fail_channel(channel, error)
            case CloseRequested() if server.phase is Phase.CLOSE_REQUESTED:
                server.closed()
            case Fault(error):
                server.fail(error)
            case _:
                channel = getattr(event, "channel", 0)
                if channel and not yes:
                    server.fail_channel(channel, FAILED)
        return []

    def _check(self) -> None:
        phase = self.server.phase
        assert phase in reachable(self._was)
        self._was = phase
        self._sent += data_to_send(self.server)

    def sent(self) -> list[tuple[int, Any]]:
        """All that has gone out, as frames."""
        data, frames = bytes(self._sent), list[tuple[int, Any]]()
        if data == PROTOCOL_HEADER:
            return frames
        while data:
            size, channel, value = frame.unmarshal(data)
            assert size
            frames.append((channel, value))
            data = data[size:]
        return frames


FORCED = ConnectionFault(ReplyCode.CONNECTION_FORCED, "enough")
FAILED = ChannelError(ReplyCode.PRECONDITION_FAILED, "not so", 60, 40)
OPENED = PROTOCOL_HEADER + start_ok() + tune_ok(4, 16_384, 0) + open_vhost()
STARTS = {
    Phase.HEADER: b"",
    Phase.START: PROTOCOL_HEADER,
    Phase.TUNE: PROTOCOL_HEADER + start_ok({"authentication_failure_close": True}),
    Phase.OPEN_VHOST: PROTOCOL_HEADER + start_ok() + tune_ok(4, 16_384, 0),
    Phase.OPEN: OPENED + open_channel(1) + open_channel(2),
    Phase.CLOSING: OPENED + open_channel(0),
    Phase.CLOSED: OPENED + method(0, Connection.Close(200, "", 0, 0)),
}
IN_THE_MIDDLE = OPENED + open_channel(1) + method(1, Basic.Publish()) + header_frame(1, 900)
"""Of a message."""

channels = st.sampled_from((0, 1, 1, 1, 2, 3, 5, 65_535))
known_methods = st.sampled_from(
    [
        Connection.TuneOk(4, 8192, 0),
        Connection.Open("/"),
        Connection.Close(200, "", 0, 0),
        Connection.CloseOk(),
        Connection.UpdateSecret("secret", ""),
        Channel.Open(),
        Channel.Flow(active=True),
        Channel.Close(200, "", 0, 0),
        Channel.CloseOk(),
        Queue.Declare(queue="q", arguments={"x-max-length": 5}),
        Basic.Consume(queue="q"),
        Basic.Ack(1),
        Basic.Nack(2, multiple=True),
        Basic.CancelOk("tag"),
        Basic.Publish(exchange="e", routing_key="k"),
        commands.Tx.Commit(),
    ]
)
sizes = st.sampled_from((0, 1, 5, 900, 1000, 1001, 2**63))
octets = st.binary(max_size=40)
whole_frames = st.one_of(
    st.builds(method, channels, known_methods),
    st.just(start_ok()),
    st.builds(publish, channels, octets),
    st.builds(header_frame, channels, sizes),
    st.builds(lambda channel, data: b"".join(body_frames(channel, data)), channels, octets),
    st.just(HEARTBEAT),
    st.just(HEARTBEAT * (AHEAD_BYTES_MAX // len(HEARTBEAT) + 1)),
    st.sampled_from((1, 2, 3, 8)).flatmap(lambda kind: st.builds(raw, st.just(kind), channels, octets)),
    st.builds(
        lambda channel, index, rest: raw(1, channel, struct.pack(">HH", *index) + rest),
        channels,
        st.tuples(
            st.sampled_from((10, 20, 40, 50, 60, 85, 90)), st.sampled_from((10, 11, 20, 31, 40, 50, 51, 80))
        ),
        octets,
    ),
)


class Stream(bytes):
    """Bytes that can be shown however many they are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return (
            bytes(self).__repr__()
            if len(self) < 2000
            else f"{bytes(self[:2000])!r} and {len(self) - 2000} more"
        )


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Frames, mostly valid, some with changed bytes, perhaps a truncated frame, and garbage between."""
    frames = draw(st.lists(whole_frames, max_size=12))
    if frames and draw(st.booleans()):
        damaged = bytearray(frames[at := draw(st.integers(0, len(frames) - 1))])
        place = draw(st.integers(0, len(damaged)))
        damaged[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        frames[at] = bytes(damaged)
    if draw(st.integers(0, 3)) == 0:
        frames.insert(draw(st.integers(0, len(frames))), draw(st.binary(max_size=100)))
    return Stream(b"".join(frames))


def cut(stream: bytes, sizes: list[int]) -> Iterable[bytes]:
    """Yield pieces; larger pieces of a long stream."""
    factor = 1 + len(stream) // 1000
    return pieces(stream, [size * factor for size in sizes])


cuts = st.lists(st.integers(1, 300), max_size=5)
fuzz = settings(
    deadline=None,
    max_examples=min(60, settings.default.max_examples),
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def checked(shell: Shell) -> None:
    """Assert the invariants of the output."""
    frames = shell.sent()
    closes = [place for place, (_, value) in enumerate(frames) if isinstance(value, Connection.Close)]
    assert len(closes) <= 1
    for place in closes:
        assert {type(value) for _, value in frames[place + 1 :]} <= {Connection.CloseOk}
    faults = [event for event in shell.events if isinstance(event, Fault)]
    assert len(faults) <= 1
    if faults and closes:
        assert frames[closes[0]][1].reply_code == faults[0].error.code
    in_use: set[int] = set()
    for channel, value in frames:
        match value:
            case Channel.OpenOk():
                assert channel not in in_use
                in_use.add(channel)
            case Channel.Close():
                assert channel in in_use
                in_use.remove(channel)
            case Channel.CloseOk():
                in_use.discard(channel)  # both sides may close a channel at once
            case _ if channel:
                assert channel in in_use
    assert len(shell.server.channels) <= LIMITS.channel_max


@pytest.mark.parametrize("phase", STARTS, ids=lambda phase: phase.name)
@fuzz
@given(stream=streams(), sizes=cuts, rnd=st.randoms(use_true_random=False))
def test_random_input_in_each_phase_is_handled(
    phase: Phase, stream: bytes, sizes: list[int], rnd: Any
) -> None:
    shell = Shell(lambda: True)
    shell.receive(STARTS[phase])
    assert shell.server.phase is phase
    shell._answers = lambda: rnd.random() < 0.9
    for piece in cut(stream, sizes):
        shell.receive(piece)
        if rnd.random() < 0.5:
            shell.answer()
    shell.answer()
    checked(shell)


@fuzz
@given(stream=streams(), sizes=cuts)
def test_random_input_is_bounded_before_the_shell_answers(stream: bytes, sizes: list[int]) -> None:
    for phase, start in ((Phase.LOGIN, b""), (Phase.VHOST, tune_ok(4, 16_384, 0) + open_vhost())):
        shell = Shell(lambda: False)
        shell.receive(PROTOCOL_HEADER + start_ok())
        if phase is Phase.VHOST:
            shell._answers = lambda: True
            shell.answer()
            shell._answers = lambda: False
            shell.receive(start)
        assert shell.server.phase is phase
        for piece in cut(stream, sizes):
            shell.receive(piece)
        shell._answers = lambda: True
        shell.answer()
        checked(shell)


@fuzz
@given(stream=streams(), sizes=cuts)
def test_random_input_in_the_middle_of_a_message_is_handled(stream: bytes, sizes: list[int]) -> None:
    shell = Shell(lambda: True)
    for piece in (IN_THE_MIDDLE, *cut(stream, sizes)):
        shell.receive(piece)
    checked(shell)


@fuzz
@given(stream=streams(), more=streams(), sizes=cuts)
def test_failed_connection_reads_only_close_ok(stream: bytes, more: bytes, sizes: list[int]) -> None:
    shell = Shell(lambda: True)
    shell.receive(STARTS[Phase.OPEN] + stream)
    shell.server.fail(FORCED)
    before = len(shell.events)
    for piece in cut(more, sizes):
        shell.receive(piece)
    assert len(shell.events) == before
    checked(shell)


def test_unfinished_messages_on_many_channels_are_bounded() -> None:
    """On channels that are not even open: that is found out when a message is whole."""
    shell = Shell(lambda: True)
    shell.receive(OPENED)
    begun = method(1, Basic.Publish(routing_key="k" * 100)) + header_frame(1, 1000) + raw(3, 1, bytes(999))
    for number in range(1, 2000):
        shell.receive(begun.replace(b"\0\1\0\0", number.to_bytes(2, "big") + b"\0\0"))
    assert isinstance(shell.events[-1], Fault)
    assert shell.events[-1].error.code == ReplyCode.RESOURCE_ERROR
    assert shell.server.held_bytes == 0
    checked(shell)


def test_a_frame_that_never_ends_is_held_up_to_its_limit() -> None:
    shell = Shell(lambda: True)
    shell.receive(PROTOCOL_HEADER + struct.pack(">BHI", 1, 0, FRAME_MAX_UNTUNED) + bytes(FRAME_MAX_UNTUNED))
    assert FRAME_MAX_UNTUNED < shell.server.held_bytes <= FRAME_MAX_UNTUNED + 8
    shell.receive(b"\0")
    assert shell.server.held_bytes == 0
    assert isinstance(shell.events[-1], Fault)
