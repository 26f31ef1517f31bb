"""Partial messages: their memory at a node's connections, and the slot of the connection that may continue."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from qq.amqp.connection import Phase, Settings
from qq.amqp.encoding import HEARTBEAT
from qq.client_sockets import partial_messages as partial_messages_module
from qq.client_sockets.partial_messages import (
    CHECK_S,
    FIRST_CHECK_S,
    PATIENT_CHECK_S,
    PROGRESS_BYTES,
    SHARE,
    SMALL_BYTES,
    PartialMessages,
)
from qq.config import ClientTls
from qq.errors import ChannelError, ReplyCode
from tests.harness.certificates import Authority
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import RawClient, publish

KIB = 1024
LARGE = 1000 * KIB
LIMIT = 2000 * KIB


class Connection:
    def __init__(self) -> None:
        self.reasons: set[object] = set()
        self.turn_changes = 0
        self.unused_turns = 0
        self.is_evicted = False
        self.is_read = True

    @property
    def goes_on(self) -> bool:
        return not self.reasons

    def pause_for(self, reason: object) -> None:
        self.reasons.add(reason)

    def resume_for(self, reason: object) -> None:
        self.reasons.discard(reason)

    def memory_slot_changed(self) -> None:
        self.turn_changes += 1

    def memory_slot_unused(self) -> None:
        self.unused_turns += 1

    def close_stalled(self) -> None:
        self.is_evicted = True


class Timers:
    """A runtime with a clock set by the test."""

    def __init__(self) -> None:
        self._waiting: dict[object, Callable[[], None]] = {}
        self.delays_s: list[float] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.delays_s.append(delay_s)
        timer = _Timer(self._waiting)
        self._waiting[timer] = callback
        return timer

    def pass_by(self) -> None:
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for callback in waiting:
            callback()

    @property
    def count(self) -> int:
        return len(self._waiting)


class _Timer:
    def __init__(self, waiting: dict[object, Callable[[], None]]) -> None:
        self._waiting = waiting

    def cancel(self) -> None:
        self._waiting.pop(self, None)


class Setup:
    def __init__(self) -> None:
        self.timers = Timers()
        runtime: Any = self.timers
        self.partial_messages = PartialMessages(runtime, LIMIT, lambda: 3)
        self.all = [Connection() for _ in range(3)]

    def record(self, which: int, size: int, came: int = PROGRESS_BYTES) -> None:
        self.partial_messages.record(self.all[which], size, came)

    @property
    def going_on(self) -> list[int]:
        return [number for number, each in enumerate(self.all) if each.goes_on]

    @property
    def evicted(self) -> list[int]:
        return [number for number, each in enumerate(self.all) if each.is_evicted]


@pytest.fixture
def setup() -> Setup:
    """Three connections with a large part of a message each: together more than the limit."""
    made = Setup()
    for number in range(3):
        made.record(number, LARGE)
    return made


def test_all_connections_are_read_while_they_hold_little() -> None:
    setup = Setup()
    setup.record(0, LARGE)
    setup.record(1, LARGE)
    setup.record(2, 200 * KIB)
    assert setup.going_on == [0, 1, 2]
    assert not setup.timers.count


def test_first_connection_is_read_when_all_hold_too_much(setup: Setup) -> None:
    assert setup.going_on == [0]
    assert [setup.partial_messages.waits(each) for each in setup.all] == [False, True, True]


def test_new_connection_waits_once_it_holds_much(setup: Setup) -> None:
    setup.all.append(Connection())
    setup.record(3, 200 * KIB)
    assert setup.going_on == [0, 3]
    setup.record(3, 300 * KIB)
    assert setup.going_on == [0]


def test_all_connections_are_read_when_a_message_is_complete(setup: Setup) -> None:
    setup.record(0, 2 * LARGE)
    assert setup.going_on == [0]
    setup.record(0, 0)
    assert setup.going_on == [0, 1, 2]
    assert not setup.timers.count


def test_slot_ends_with_a_message_although_more_is_buffered(setup: Setup) -> None:
    setup.record(0, 4 * LARGE)
    setup.record(0, 3 * LARGE)
    assert setup.going_on == [1]
    setup.record(1, 0)
    assert setup.going_on == [1, 2]


def test_silent_connection_loses_its_slot(setup: Setup) -> None:
    setup.record(0, LARGE + 1)
    setup.timers.pass_by()
    assert setup.going_on == [0]
    setup.timers.pass_by()
    assert setup.going_on == [1]
    setup.timers.pass_by()
    assert setup.going_on == [2]
    setup.timers.pass_by()
    assert setup.going_on == [0]
    assert setup.timers.delays_s == [FIRST_CHECK_S, CHECK_S, *[FIRST_CHECK_S] * 3], (
        "those that are silent take no time"
    )


def test_slot_lasts_longer_when_all_hold_far_too_much(setup: Setup) -> None:
    setup.record(0, 2 * LIMIT)
    setup.timers.pass_by()
    assert setup.timers.delays_s == [FIRST_CHECK_S, PATIENT_CHECK_S]
    assert setup.going_on == [0]


def test_trickling_connection_loses_its_slot(setup: Setup) -> None:
    """Further connections once waited until its message had ended: for hours, at an octet a second."""
    for came in (1, PROGRESS_BYTES, PROGRESS_BYTES - 1):
        assert setup.going_on == [0]
        setup.record(0, LARGE, came)
        setup.timers.pass_by()
    assert setup.going_on == [1]


def test_connection_with_a_long_frame_keeps_its_slot(setup: Setup) -> None:
    """It holds no more before that is complete, and once lost its turn, or was given up."""
    setup.record(1, SHARE * LIMIT)
    for _ in range(3):
        for _ in range(2):
            setup.record(0, LARGE, PROGRESS_BYTES // 2)
        setup.timers.pass_by()
    assert (setup.going_on, setup.evicted) == ([0], [])


def test_idle_slot_holder_is_dropped_when_memory_is_exceeded(setup: Setup) -> None:
    setup.record(1, SHARE * LIMIT)
    setup.timers.pass_by()
    assert setup.timers.delays_s == [FIRST_CHECK_S, PATIENT_CHECK_S], "a busy node may not have read it yet"
    setup.record(0, LARGE + PROGRESS_BYTES)
    setup.timers.pass_by()
    assert (setup.going_on, setup.evicted) == ([0], [])
    setup.timers.pass_by()
    assert (setup.going_on, setup.evicted) == ([1], [0])
    setup.partial_messages.remove(setup.all[0])
    setup.partial_messages.remove(setup.all[1])
    assert setup.going_on == [0, 1, 2]


def test_paused_connection_keeps_its_slot(setup: Setup) -> None:
    """The disk may be short, too, or it waits for a limit: it cannot go on, and was told that it had not."""
    setup.record(1, SHARE * LIMIT)
    setup.all[0].is_read = False
    for _ in range(2):
        setup.timers.pass_by()
    assert (setup.going_on, setup.evicted) == ([1], [])
    assert not setup.all[0].unused_turns


def test_unused_slots_are_counted(setup: Setup) -> None:
    setup.record(0, LARGE + 1, came=1)
    for _ in range(4):
        setup.timers.pass_by()
    assert [each.unused_turns for each in setup.all] == [1, 1, 1]
    setup.record(0, LARGE + 2, came=1)
    setup.timers.pass_by()
    setup.record(0, LARGE + 3, came=1)
    setup.timers.pass_by()
    assert setup.going_on == [1]
    assert [each.unused_turns for each in setup.all] == [1, 1, 1]


@pytest.mark.parametrize("which", [0, 1])
def test_closed_connection_returns_its_bytes(setup: Setup, which: int) -> None:
    setup.partial_messages.remove(setup.all[which])
    assert setup.going_on == [0, 1, 2]
    setup.partial_messages.remove(setup.all[which])
    setup.record(which, LARGE)
    assert len(setup.going_on) == 1


_sizes = st.one_of(
    st.integers(0, 3 * LARGE), st.sampled_from([0, 1, 256 * KIB, 256 * KIB + 1, LARGE, LIMIT, LIMIT + 1])
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.integers(0, 5), _sizes),
        st.tuples(st.just("left"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=min(200, settings.default.max_examples), deadline=None, derandomize=True)
@given(_steps, st.integers(1, 40))
def test_some_connection_is_always_read(steps: list[tuple[str, int, int]], count: int) -> None:
    """In any order of events: a waiting connection continues, and no connection waits without need."""
    timers = Timers()
    runtime: Any = timers
    partial_messages = PartialMessages(runtime, LIMIT, lambda: count)
    connections = [Connection() for _ in range(6)]
    held = dict.fromkeys(connections, 0)
    for step, which, size in steps:
        connection = connections[which]
        if step == "wait":
            takes_all = sum(held.values()) > SHARE * LIMIT
            timers.pass_by()
            evicted = [each for each in connections if each.is_evicted]
            assert len(evicted) <= takes_all
            for each in evicted:
                partial_messages.remove(each)
                held[each], each.is_evicted = 0, False
        elif step == "left":
            partial_messages.remove(connection)
            held[connection] = 0
        else:
            partial_messages.record(connection, size, 1)
            is_small = size <= min(SMALL_BYTES, LIMIT // (2 * count))
            held[connection] = 0 if is_small else size
        holders = [each for each in connections if held[each]]
        going_on = [each for each in holders if each.goes_on]
        assert all(each.goes_on for each in connections if not held[each])
        assert [each for each in connections if partial_messages.waits(each)] == [
            each for each in connections if not each.goes_on
        ]
        if sum(held.values()) > LIMIT:
            assert len(going_on) == 1
            assert timers.count == 1
        else:
            assert going_on == holders
            assert timers.count == 0
    turns: set[Connection] = set()
    for _ in range(4 * len(connections)):
        turns.update(each for each in connections if each.goes_on)
        timers.pass_by()
        for each in connections:
            if each.is_evicted:
                partial_messages.remove(each)
    assert turns == set(connections), "all have their turns"


WHOLE = publish(1, "q", bytes(LARGE))
WHY_GIVEN_UP = "memory is short, and the rest of a large message has not come for too long: publish it again"


@contextmanager
def begun(
    broker: LoneBroker,
    count: int,
    whole: bytes = WHOLE,
    *,
    left: int = 1,
    frame_max: int = 131_072,
    heartbeat: int = 0,
    tls: ssl.SSLContext | None = None,
) -> Iterator[list[RawClient]]:
    """Clients that have sent a message each, but for its last octet, or so many of them."""
    port = broker.amqp_port if tls is None else broker.amqps_port
    with ExitStack() as connections:
        clients = [
            connections.enter_context(RawClient(port, frame_max=frame_max, heartbeat=heartbeat, tls=tls))
            for _ in range(count)
        ]
        for client in clients:
            client.open_channel(1)
            client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
            client.write(whole[:-left])
        yield clients


def waiting(broker: LoneBroker) -> int:
    """Return the number of connections that wait for the slot."""
    return broker.call(
        lambda: sum(broker.server.sockets.partial_messages.waits(each) for each in _connections(broker))
    )


def test_clients_finish_their_messages_in_turn() -> None:
    """Sixty of them once raised the alarm, and none could end its message: publishers waited for ever."""
    with LoneBroker(partial_bytes=LIMIT) as broker, begun(broker, 5) as clients:

        def blocked() -> int:
            return broker.call(lambda: sum(each.facts().is_blocked for each in _connections(broker)))

        wait_until(lambda: blocked() == len(clients) - 1, "all but one")
        clients[1].socket.close()  # it is found to be gone when it has its turn
        for client in clients[2:]:
            client.write(WHOLE[-1:])
        clients[0].write(WHOLE[-1:])
        wait_until(lambda: len(broker.broker.connections) == len(clients) - 1, "the one that has gone")
        for client in (clients[0], *clients[2:]):
            client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        declared = clients[0].call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        assert declared.message_count == len(clients) - 1


def test_begun_messages_are_finished_during_a_memory_alarm() -> None:
    """Clients that sent in bursts once raised the alarm in their turns, and waited for its end, all of them."""
    with LoneBroker(partial_bytes=LIMIT) as broker, begun(broker, 5) as clients:
        wait_until(lambda: waiting(broker) == len(clients) - 1, "all but one")
        broker.alarm("low on memory & disk")
        assert not broker.call(lambda: any(map(_is_read, _connections(broker))))
        broker.alarm("low on memory")
        wait_until(lambda: broker.call(lambda: any(map(_is_read, _connections(broker)))), "the one in turn")
        for client in clients:
            client.write(WHOLE[-1:])
        wait_until(lambda: waiting(broker) == 0, "the end of the turns")
        broker.alarm(None)
        for client in clients:
            client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


def test_unfinished_messages_are_bounded_by_dropping_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that stopped in mid-message once took all that they had begun of a node's memory, however much."""
    monkeypatch.setattr(partial_messages_module, "CHECK_S", 0.1)
    monkeypatch.setattr(partial_messages_module, "PATIENT_CHECK_S", 0.2)
    most = SHARE * LIMIT // LARGE
    with LoneBroker(partial_bytes=LIMIT) as broker, begun(broker, most + 3) as clients:

        def open_ports() -> set[int]:
            return {each.peer_port for each in _connections(broker) if each._engine.phase is Phase.OPEN}

        wait_until(lambda: len(open_ports()) == most, "those that were too many")
        left = open_ports()
        for client in clients:
            if client.socket.getsockname()[1] in left:
                client.write(WHOLE[-1:])
                client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
            else:
                client.expect_close(ReplyCode.RESOURCE_ERROR, f"RESOURCE_ERROR - {WHY_GIVEN_UP}")


def test_connection_that_is_shut_down_holds_no_slot() -> None:
    with LoneBroker(partial_bytes=LIMIT) as broker, begun(broker, 3):
        partial_messages = broker.server.sockets.partial_messages

        def turn() -> list[bool]:
            return [partial_messages.has_slot(each) for each in _connections(broker)]

        wait_until(lambda: any(broker.call(turn)), "turns")
        broker.call(lambda: _connections(broker)[2].shut_down("elsewhere"))
        assert not any(broker.call(turn)), "what the two others hold is not too much"


def test_closed_channel_frees_its_unfinished_message() -> None:
    """The broker closes a channel for an earlier request when the next message has begun to arrive."""
    with LoneBroker(partial_bytes=LIMIT) as broker, begun(broker, 3) as clients:
        partial_messages = broker.server.sockets.partial_messages

        def close_one() -> None:
            connection = next(each for each in _connections(broker) if partial_messages.waits(each))
            connection.fail_channel(
                connection._channels[1], ChannelError(ReplyCode.NOT_FOUND, "no such queue")
            )

        wait_until(lambda: waiting(broker) == len(clients) - 1, "all but one")
        broker.call(close_one)
        assert not waiting(broker)


def test_a_large_frame_counts_although_it_has_not_ended() -> None:
    """A whole message may be in a single frame, if `frame_max` allows it."""
    frame_max = 4 * LARGE
    whole = publish(1, "q", bytes(LARGE), frame_max=frame_max)
    with (
        LoneBroker(Settings(frame_max=frame_max), partial_bytes=LIMIT) as broker,
        begun(broker, 5, whole, frame_max=frame_max) as clients,
    ):
        wait_until(lambda: waiting(broker) == len(clients) - 1, "all but one")
        broker.alarm("low on disk")
        assert all(each.facts().is_blocked for each in _connections(broker)), "they have begun to publish"
        broker.alarm(None)
        for client in clients:
            client.write(whole[-1:])
        wait_until(lambda: waiting(broker) == 0, "the end of the turns")
        for client in clients:
            client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


@pytest.mark.parametrize("has_heartbeats", [False, True])
@pytest.mark.parametrize("speaks_tls", [False, True])
def test_waiting_client_stays_while_its_heartbeats_arrive(
    has_heartbeats: bool, speaks_tls: bool, tmp_path: Path
) -> None:
    """Dead connections once kept their partial messages for ever, and had the slot in turn."""
    authority = Authority(tmp_path)
    last_frame = LARGE % (131_072 - 8) + 8  # heartbeats go between frames
    files = ClientTls(*authority.issue("server"))
    context = authority.context() if speaks_tls else None
    with (
        LoneBroker(tls=files, new_loop=uvloop.new_event_loop, partial_bytes=LIMIT) as broker,
        begun(broker, 5, left=last_frame, heartbeat=1, tls=context) as clients,
    ):
        wait_until(lambda: waiting(broker) == len(clients) - 1, "all but one")
        if has_heartbeats:
            end_s = time.monotonic() + 4.0
            while time.monotonic() < end_s:
                for client in clients:
                    client.write(HEARTBEAT)
                time.sleep(0.3)
            assert len(broker.broker.connections) == len(clients)
        wait_until(lambda: not broker.broker.connections, "their ends")


def _connections(broker: LoneBroker) -> list[Any]:
    return list(broker.broker.connections.values())


def _is_read(connection: Any) -> bool:
    return not connection._reasons_to_pause
