"""Messages of which only a part has come: what a node's connections hold of them, and whose turn it is to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lone_broker import LoneBroker, wait_until
from pamqp import commands
from raw_client import RawClient, publish

from qq.amqp_server.unfinished import FIRST_LOOK_S, LOOK_S, Unfinished

KIB = 1024
LARGE = 1000 * KIB
LIMIT = 2000 * KIB


class Connection:
    def __init__(self) -> None:
        self.reasons: set[object] = set()

    @property
    def goes_on(self) -> bool:
        return not self.reasons

    def pause_for(self, reason: object) -> None:
        self.reasons.add(reason)

    def resume_for(self, reason: object) -> None:
        self.reasons.discard(reason)


class Timers:
    """The runtime, whose time passes when it is told to."""

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
        self.unfinished = Unfinished(runtime, LIMIT, lambda: 3)
        self.all = [Connection() for _ in range(3)]

    def note(self, which: int, size: int) -> None:
        self.unfinished.note(self.all[which], size)

    @property
    def going_on(self) -> list[int]:
        return [number for number, each in enumerate(self.all) if each.goes_on]


@pytest.fixture
def setup() -> Setup:
    """Three connections, each of which holds a large part of a message: more than all may hold together."""
    made = Setup()
    for number in range(3):
        made.note(number, LARGE)
    return made


def test_all_go_on_while_they_hold_little() -> None:
    setup = Setup()
    setup.note(0, LARGE)
    setup.note(1, LARGE)
    setup.note(2, 200 * KIB)
    assert setup.going_on == [0, 1, 2]
    assert not setup.timers.count


def test_the_first_goes_on_when_all_together_hold_too_much(setup: Setup) -> None:
    assert setup.going_on == [0]
    assert [setup.unfinished.waits(each) for each in setup.all] == [False, True, True]


def test_who_comes_meanwhile_waits_once_it_holds_much(setup: Setup) -> None:
    setup.all.append(Connection())
    setup.note(3, 200 * KIB)
    assert setup.going_on == [0, 3]
    setup.note(3, 300 * KIB)
    assert setup.going_on == [0]


def test_all_go_on_when_a_message_has_ended(setup: Setup) -> None:
    setup.note(0, 2 * LARGE)
    assert setup.going_on == [0]
    setup.note(0, 0)
    assert setup.going_on == [0, 1, 2]
    assert not setup.timers.count


def test_a_turn_ends_with_a_message_even_if_its_connection_holds_others(setup: Setup) -> None:
    setup.note(0, 4 * LARGE)
    setup.note(0, 3 * LARGE)
    assert setup.going_on == [1]
    setup.note(1, 0)
    assert setup.going_on == [1, 2]


def test_who_sends_nothing_loses_its_turn(setup: Setup) -> None:
    setup.note(0, LARGE + 1)
    setup.timers.pass_by()
    assert setup.going_on == [0]
    setup.timers.pass_by()
    assert setup.going_on == [1]
    setup.timers.pass_by()
    assert setup.going_on == [2]
    setup.timers.pass_by()
    assert setup.going_on == [0]
    assert setup.timers.delays_s == [FIRST_LOOK_S, LOOK_S, *[FIRST_LOOK_S] * 3], (
        "those that are silent take no time"
    )


@pytest.mark.parametrize("which", [0, 1])
def test_who_leaves_gives_back_what_it_held(setup: Setup, which: int) -> None:
    setup.unfinished.left(setup.all[which])
    assert setup.going_on == [0, 1, 2]
    setup.unfinished.left(setup.all[which])
    setup.note(which, LARGE)
    assert len(setup.going_on) == 1


def test_clients_finish_one_after_the_other_what_they_have_begun() -> None:
    """Sixty of them once raised the alarm, and none could end its message: publishers waited for ever."""
    whole = publish(1, "q", bytes(LARGE))
    with LoneBroker(unfinished_bytes=LIMIT) as broker:
        clients = [RawClient(broker.amqp_port) for _ in range(5)]
        for client in clients:
            client.open_channel(1)
            client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
            client.write(whole[:-1])

        def waiting() -> int:
            return broker.call(
                lambda: sum(each.facts().is_blocked for each in broker.broker.connections.values())
            )

        wait_until(lambda: waiting() == len(clients) - 1, "all but one")
        clients[1].socket.close()  # it is found to be gone when it has its turn
        for client in clients[2:]:
            client.write(whole[-1:])
        clients[0].write(whole[-1:])
        wait_until(lambda: len(broker.broker.connections) == len(clients) - 1, "the one that has gone")
        for client in (clients[0], *clients[2:]):
            client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        declared = clients[0].call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        assert declared.message_count == len(clients) - 1
        for client in clients:
            client.socket.close()
