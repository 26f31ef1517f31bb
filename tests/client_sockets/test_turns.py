"""Turns at the node's processor: fair shares by cost, at once while no connection waits, and bounded passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from qq.client_sockets.turns import PASS_S, TURN_S, Place, ProcessorTurns

MS = 0.001


class Loop:
    """A clock of processor time, and the callbacks of the next pass of the event loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Callable[[], None]] = []
        self.rests_s: list[float] = []
        """Seconds for which the turns may rest before each of their passes."""
        self.turns = ProcessorTurns(self.call_after_rest, lambda: self.now_s)
        self.served: list[str] = []

    def call_after_rest(self, callback: Callable[[], None], rest_s: float) -> None:
        self.soon.append(callback)
        self.rests_s.append(rest_s)

    def run_pass(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()

    def run(self, passes: int = 1000) -> None:
        for _ in range(passes):
            self.run_pass()


class Connection:
    """A connection with some work. It does `step_s` of the work in a turn."""

    def __init__(self, loop: Loop, vhost: str, user: str = "", name: str = "", step_s: float = MS) -> None:
        self.name = name or vhost
        self.work_s = 0.0
        self.step_s = step_s
        self._loop = loop
        self.place: Place = loop.turns.new_place(self, "host")
        loop.turns.log_in(self.place, vhost, user or vhost)

    def ask(self, work_s: float) -> None:
        self.work_s += work_s
        self._loop.turns.request(self.place)

    def take_turn(self, _until_s: float) -> bool:
        done_s = min(self.step_s, self.work_s)
        self.work_s -= done_s
        self._loop.now_s += done_s
        self._loop.served.append(self.name)
        return self.work_s > 1e-9


def test_work_is_done_at_once_while_no_connection_waits() -> None:
    loop = Loop()
    Connection(loop, "a").ask(0.1 * MS)
    assert loop.served == ["a"]
    assert loop.soon == []


def test_turn_gets_the_time_at_which_it_should_end() -> None:
    loop = Loop()
    ends: list[float] = []

    class Asking(Connection):
        def take_turn(self, until_s: float) -> bool:
            ends.append(until_s)
            return False

    loop.now_s = 7.0
    Asking(loop, "a").ask(MS)
    assert ends == [7.0 + TURN_S]


def test_pass_ends_when_its_time_is_spent() -> None:
    loop = Loop()
    flood = Connection(loop, "a")
    flood.ask(100 * MS)
    loop.run_pass()
    before_s = loop.now_s
    loop.run_pass()
    assert PASS_S <= loop.now_s - before_s + 1e-9 <= PASS_S + flood.step_s


def test_small_work_of_many_connections_fills_no_pass() -> None:
    """Each is small enough to be done at once. Together they would hold up timers and all other sockets."""
    loop = Loop()
    connections = [Connection(loop, f"{number}") for number in range(100)]
    for each in connections:
        each.ask(0.2 * MS)
    assert loop.now_s <= PASS_S + MS
    loop.run()
    assert sum(each.work_s for each in connections) == 0


def test_light_tenant_goes_ahead_of_a_flood() -> None:
    loop = Loop()
    for number in range(100):
        Connection(loop, "heavy", name=f"heavy-{number}").ask(100 * MS)
    loop.run(10)
    loop.served.clear()
    light = Connection(loop, "light")
    light.ask(0.1 * MS)
    loop.run_pass()
    assert loop.served[0] == "light"


def test_virtual_hosts_share_by_cost() -> None:
    """Neither the number of connections nor the size of their turns gives a tenant more."""
    loop = Loop()
    tenants = [Connection(loop, "many", name="many", step_s=0.3 * MS) for _ in range(50)]
    tenants.append(Connection(loop, "one", step_s=2 * MS))
    for each in tenants:
        each.ask(1.0)
    loop.run(200)
    spent = Counter[str]()
    for each in tenants:
        spent[each.name] += round((1.0 - each.work_s) / MS)
    assert abs(spent["many"] - spent["one"]) <= 10


def test_users_of_a_virtual_host_share_by_cost() -> None:
    loop = Loop()
    many = [Connection(loop, "v", "a") for _ in range(20)]
    one = Connection(loop, "v", "b")
    for each in (*many, one):
        each.ask(1.0)
    loop.run(100)
    assert abs(sum(1.0 - each.work_s for each in many) - (1.0 - one.work_s)) <= 10 * MS


def test_connections_of_a_user_share_by_cost() -> None:
    loop = Loop()
    connections = [Connection(loop, "v", step_s=step * MS) for step in (0.5, 1, 2)]
    for each in connections:
        each.ask(1.0)
    loop.run(100)
    done = [1.0 - each.work_s for each in connections]
    assert max(done) - min(done) <= 5 * MS


def test_past_use_of_an_idle_node_is_forgotten() -> None:
    """A tenant that had the node for itself must not wait until a new tenant has used as much."""
    loop = Loop()
    old, new = Connection(loop, "old"), Connection(loop, "new")
    for _ in range(1000):
        old.ask(MS)
        loop.run_pass()
    new.ask(1.0)
    old.ask(1.0)
    loop.run(100)
    assert abs(new.work_s - old.work_s) <= 20 * MS


def test_connections_without_a_login_share_a_place() -> None:
    loop = Loop()
    unauthenticated = [Connection(loop, "", name="stranger") for _ in range(30)]
    for each in unauthenticated:
        each.place = loop.turns.new_place(each, "host")
        each.ask(1.0)
    user = Connection(loop, "v")
    user.ask(1.0)
    loop.run(100)
    assert abs(sum(1.0 - each.work_s for each in unauthenticated) - (1.0 - user.work_s)) <= 10 * MS


def test_waiting_connection_may_move_to_its_user() -> None:
    loop = Loop()
    flood = Connection(loop, "a")
    flood.ask(1.0)
    moved = Connection(loop, "x")
    moved.ask(5 * MS)
    loop.turns.log_in(moved.place, "b", "b")
    loop.run(50)
    assert moved.work_s <= 1e-9
    assert loop.served.count("x") == 5


def test_turn_requested_in_the_own_turn_comes_after_it() -> None:
    loop = Loop()

    class Nested(Connection):
        depth = 0

        def take_turn(self, until_s: float) -> bool:
            assert self.depth == 0
            self.depth += 1
            self._loop.turns.request(self.place)
            left = super().take_turn(until_s)
            self.depth -= 1
            return left

    Nested(loop, "a").ask(3 * MS)
    loop.run(10)
    assert loop.served == ["a"] * 3


def test_turn_requested_during_a_turn_comes_after_it() -> None:
    """Its work may be the consequence of the turn that is going on, and must not be done within it."""
    loop = Loop()
    other = Connection(loop, "b")

    class Causing(Connection):
        def take_turn(self, until_s: float) -> bool:
            other.ask(MS)
            assert loop.served == []
            return super().take_turn(until_s)

    Causing(loop, "a").ask(MS)
    loop.run_pass()
    assert loop.served == ["a", "b"]


def test_closed_connection_gets_no_turn() -> None:
    loop = Loop()
    Connection(loop, "a").ask(10 * MS)
    closed = Connection(loop, "b")
    closed.ask(MS)
    loop.turns.leave(closed.place)
    loop.run(20)
    assert "b" not in loop.served


def test_turns_rest_for_the_time_that_they_took() -> None:
    loop = Loop()
    Connection(loop, "a").ask(10 * MS)
    loop.run(3)
    assert loop.rests_s[0] == pytest.approx(MS)
    assert loop.rests_s[1:4] == pytest.approx([PASS_S] * 3, abs=MS)


def test_turn_costs_include_the_tasks_that_it_causes() -> None:
    loop = Loop()

    class Charging(Connection):
        def take_turn(self, until_s: float) -> bool:
            loop.turns.charge(PASS_S)
            return super().take_turn(until_s)

    charging, other = Charging(loop, "a", step_s=0.0), Connection(loop, "b", step_s=PASS_S)
    charging.ask(1.0)
    other.ask(1.0)
    loop.run(100)
    assert abs(loop.served.count("a") - loop.served.count("b")) <= 3
    assert max(loop.rests_s) <= 2 * PASS_S


class Failing(Connection):
    def take_turn(self, until_s: float) -> bool:
        super().take_turn(until_s)
        raise ZeroDivisionError


def test_failed_turn_ends_no_turn_of_other_connections() -> None:
    loop = Loop()
    failing, other = Failing(loop, "a", step_s=PASS_S), Connection(loop, "b")
    with pytest.raises(ZeroDivisionError):
        failing.ask(PASS_S)  # at once
    other.ask(10 * MS)
    failing.ask(MS)
    assert loop.served == ["a"]
    with pytest.raises(ZeroDivisionError):
        loop.run()
    loop.run()
    assert other.work_s == pytest.approx(0)
    with pytest.raises(ZeroDivisionError):
        failing.ask(MS)
    assert loop.served.count("a") == 3


def test_clean_up_is_not_starved_by_new_connections_of_the_user() -> None:
    loop = Loop()
    lost = [Connection(loop, "v", name="lost", step_s=TURN_S) for _ in range(2)]
    for each in lost:
        each.ask(1.0)
    loop.run(100)
    for each in lost:
        each.place = loop.turns.begin_leaving(each.place)
        each.ask(0.0)
    loop.served.clear()
    for number in range(100):
        Connection(loop, "v", name=f"new {number}", step_s=TURN_S).ask(3 * TURN_S)
        loop.run_pass()
    assert loop.served.count("lost") == pytest.approx(100, abs=5)
