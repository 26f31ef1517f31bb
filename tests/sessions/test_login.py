"""Logins: admission, rechecks of unknown users, and the cost of guessing."""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest
from pamqp import commands

from qq.amqp.connection import ServerConnection
from qq.machine.catalog.permissions import HASH_BYTES, SHA256, User
from qq.metrics.counters import Counters
from qq.sessions import login as login_module
from qq.sessions.login import (
    BARRIER_INTERVAL_S,
    CHECK_WAIT_MAX_S,
    CHECKS_AT_ONCE,
    CHECKS_PER_S,
    DELAY_MAX_S,
    FIRST_DELAY_S,
    FORGOTTEN_AFTER_S,
    LOG_LINES_PER_S,
    Login,
    Logins,
    LoginsBusy,
    hash_password,
)
from tests.harness.lone_broker import SALT, LoneBroker
from tests.harness.raw_client import HEADER, RawClient

Connection = commands.Connection
HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"


class Clock:
    """Time and the log, both moved by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.barriers: list[Callable[[], None]] = []
        self.numbers = itertools.count()
        self.barrier_count = 0
        """How often the log was asked."""

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        timer = (self.now_s + delay_s, next(self.numbers), callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.timers and self.timers.remove(timer))

    def read(self, callback: Callable[[], None], _lane: object) -> None:
        self.barriers.append(callback)
        self.barrier_count += 1

    def wait_applied(self) -> None:
        """The log answers."""
        while self.barriers:
            self.barriers.pop(0)()

    def go_on(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.timers and min(self.timers)[0] <= end_s:
            timer = min(self.timers)
            self.timers.remove(timer)
            self.now_s = timer[0]
            timer[2]()
            self.wait_applied()
        self.now_s = end_s


class World:
    def __init__(self) -> None:
        self.clock: Any = Clock()
        self.users: dict[str, User] = {}
        self.counters = Counters()
        machine: Any = SimpleNamespace(users=self.users)
        self.logins = Logins(machine, self.clock, self.clock, ["guest"], self.counters)
        self.answers: list[tuple[str, bool, float]] = []
        self.turned_away = 0
        self.add("anna", "right")

    def add(self, user: str, password: str | None, hashing: str = SHA256) -> None:
        hashed = hash_password(SALT, password.encode(), hashing) if password is not None else b""
        self.users[user] = User(user, SALT, hashed, [], hashing)

    def attempt(self, user: str = "anna", password: str | None = "wrong", host: str = HERE) -> Any:
        secret = password.encode() if password is not None else None
        try:
            return self.logins.attempt(
                Login(user, secret, host),
                lambda admitted: self.answers.append((user, admitted, round(self.clock.now_s, 3))),
            )
        except LoginsBusy:
            self.turned_away += 1
            return SimpleNamespace(cancel=lambda: None)

    def fail(self, times: int = 1, user: str = "anna", host: str = HERE) -> None:
        for _ in range(times):
            self.attempt(user, host=host)
            self.clock.wait_applied()
            self.clock.go_on(DELAY_MAX_S)
        self.answers.clear()

    def flood(self, count: int, user: str = "anna", host: str = HERE) -> list[Any]:
        """Wrong guesses, all at once."""
        attempts = [self.attempt(user, f"wrong {number}", host) for number in range(count)]
        self.clock.wait_applied()
        return attempts

    @property
    def admitted(self) -> list[str]:
        return [user for user, admitted, _ in self.answers if admitted]


@pytest.fixture
def world() -> World:
    return World()


# Admission


def test_the_right_password_is_answered_at_once(world: World) -> None:
    assert world.attempt(password="right") is None
    assert world.answers == [("anna", True, 0)]
    assert world.clock.barriers == []
    assert (world.counters.logins_succeeded, world.counters.logins_failed) == (1, 0)
    assert world.logins.outcomes == {("amqp091", True): 1}


@pytest.mark.parametrize(
    ("user", "password"), [("anna", "wrong"), ("anna", ""), ("nobody", "right"), ("nobody", None), ("", "")]
)
def test_wrong_or_unknown_login_is_refused_after_a_delay(
    world: World, user: str, password: str | None
) -> None:
    assert world.attempt(user, password) is not None
    world.clock.wait_applied()
    world.clock.go_on(FIRST_DELAY_S)
    assert world.answers == [(user, False, FIRST_DELAY_S)]
    assert (world.counters.logins_succeeded, world.counters.logins_failed) == (0, 1)
    assert world.logins.outcomes == {("amqp091", False): 1}


def test_certificate_admits_a_known_user(world: World) -> None:
    world.add("CN=anna", None)
    world.attempt("CN=anna", None)
    assert world.answers == [("CN=anna", True, 0)]


def test_user_without_a_password_is_never_admitted(world: World) -> None:
    world.add("CN=anna", None)
    for password in ("", "right"):
        assert not world.logins._admits(Login("CN=anna", password.encode(), HERE))


@pytest.mark.parametrize("hashing", HASH_BYTES)
def test_a_password_is_compared_as_it_was_hashed(world: World, hashing: str) -> None:
    world.add("anna", "right", hashing)
    assert world.users["anna"].hash == hashlib.new(hashing, SALT + b"right").digest()
    assert world.logins._admits(Login("anna", b"right", HERE))
    assert not world.logins._admits(Login("anna", b"wrong", HERE))
    world.add("anna", None, hashing)
    assert not world.logins._admits(Login("anna", b"", HERE))


@pytest.mark.parametrize("password", ["right", None])
def test_some_users_log_in_from_their_own_machine_only(world: World, password: str | None) -> None:
    world.add("guest", "right")
    secret = password.encode() if password is not None else None
    hosts = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", HERE, "::2", "")
    admitted = [host for host in hosts if world.logins._admits(Login("guest", secret, host))]
    assert admitted == ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]


# Users made through other nodes


def test_unknown_user_is_looked_up_in_the_log(world: World) -> None:
    world.attempt("new", "secret")
    assert world.answers == []
    world.add("new", "secret")
    world.clock.wait_applied()
    assert world.answers == [("new", True, 0)]
    assert world.counters.logins_failed == 0


def test_changed_password_is_looked_up_in_the_log(world: World) -> None:
    world.attempt("anna", "new")
    world.add("anna", "new")
    world.clock.wait_applied()
    assert world.answers == [("anna", True, 0)]


def test_login_is_not_refused_without_a_majority(world: World) -> None:
    world.attempt()
    world.clock.go_on(1000)
    assert world.answers == []


# Guessing


def test_each_failed_login_doubles_the_delay(world: World) -> None:
    delays: list[float] = []
    for _ in range(9):
        began_s = world.clock.now_s
        world.attempt()
        world.clock.wait_applied()
        world.clock.go_on(DELAY_MAX_S)
        delays.append(round(world.answers[-1][2] - began_s, 3))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5]


def test_valid_login_is_not_delayed_by_failures(world: World) -> None:
    world.fail(20)
    world.attempt(password="right")
    assert world.admitted == ["anna"]


def test_failed_login_delays_only_its_user_at_its_address(world: World) -> None:
    world.fail(20)
    for user, host in (("bob", HERE), ("anna", ELSEWHERE)):
        world.answers.clear()
        began_s = world.clock.now_s
        world.attempt(user, host=host)
        world.clock.wait_applied()
        world.clock.go_on(FIRST_DELAY_S)
        assert world.answers == [(user, False, round(began_s + FIRST_DELAY_S, 3))]


def test_a_failure_is_forgotten(world: World) -> None:
    world.fail(20)
    world.clock.go_on(FORGOTTEN_AFTER_S + 1)
    began_s = world.clock.now_s
    world.attempt()
    world.clock.wait_applied()
    world.clock.go_on(DELAY_MAX_S)
    assert world.answers == [("anna", False, round(began_s + FIRST_DELAY_S, 3))]


def test_valid_logins_from_a_failing_address_are_not_delayed(world: World) -> None:
    """100 clients with an old password share an address with valid clients, for an hour."""
    world.add("bob", "right")

    def fail_again(_: bool = False) -> None:
        world.logins.attempt(Login("anna", b"old", HERE), fail_again)

    for _ in range(100):
        fail_again()
    world.clock.wait_applied()
    for _ in range(3600 // 7):
        world.clock.go_on(7)
        world.attempt(password="right")
        world.attempt("bob", "right")
        assert world.admitted == ["anna", "bob"]
        world.answers.clear()
    assert world.counters.logins_failed > 3600 / DELAY_MAX_S * 100 / 2


@pytest.mark.parametrize("at", [HERE, ELSEWHERE])
def test_valid_login_in_a_flood_waits_for_earlier_logins_only(world: World, at: str) -> None:
    """Guesses at the same user, from the same address or elsewhere."""
    world.flood(CHECKS_AT_ONCE)
    assert not world.logins._waiting
    waiting = world.flood(200)
    assert len(world.logins._waiting) > 190
    world.attempt(password="right", host=at)
    assert world.admitted == []
    world.clock.go_on(200 / CHECKS_PER_S + 0.02)
    assert world.admitted == ["anna"]
    assert all(attempt.answer is not None for attempt in waiting)


def test_known_address_of_a_user_does_not_wait_for_a_flood(world: World) -> None:
    world.attempt(password="right")
    world.answers.clear()
    world.flood(1000, "bob")
    world.flood(1000, "anna", ELSEWHERE)
    world.attempt(password="right")
    assert world.admitted == ["anna"]


def test_logins_are_judged_at_a_limited_rate(world: World) -> None:
    """Guesses at many users or a single user, from an address or many; hanging up gains no time."""
    floods: list[Callable[[int], tuple[str, str]]] = [
        lambda number: (f"user{number}", HERE),
        lambda number: ("anna", f"198.51.{number // 250}.{number % 250}"),
        lambda _: ("bob", "203.0.113.1"),
    ]
    for source in floods:
        world.clock.go_on(1000)
        before, began_s = world.counters.logins_failed, world.clock.now_s
        for number in range(2000):
            user, host = source(number)
            attempt = world.attempt(user, f"guess {number}", host)
            world.clock.wait_applied()
            if number % 2:
                attempt.cancel()
            world.clock.go_on(0.001)
        checked = world.counters.logins_failed - before
        assert checked <= CHECKS_AT_ONCE + (world.clock.now_s - began_s + 0.1) * CHECKS_PER_S
        world.clock.go_on(100)


def test_cancelled_logins_are_not_waited_for(world: World) -> None:
    for _ in range(20):
        for attempt in world.flood(1000):
            attempt.cancel()
    world.attempt(password="right")
    world.clock.go_on(0.05)
    assert world.admitted == ["anna"]


def test_logins_are_refused_when_the_wait_would_be_too_long(world: World) -> None:
    world.flood(1000)
    at_once = CHECKS_AT_ONCE + round(CHECKS_PER_S * CHECK_WAIT_MAX_S) + 1
    assert world.turned_away == 1000 - at_once
    world.clock.go_on(0.02)
    world.attempt(password="right")
    world.clock.go_on(CHECK_WAIT_MAX_S)
    assert world.admitted == ["anna"]


def test_many_failed_logins_share_a_read_barrier(world: World) -> None:
    seconds = 2
    for number in range(2000):
        world.attempt(f"user{number}", host=f"198.51.{number // 250}.{number % 250}")
        world.clock.wait_applied()
        world.clock.go_on(seconds / 2000)
    assert world.counters.logins_failed > 1900
    assert world.clock.barrier_count <= seconds / BARRIER_INTERVAL_S + 1


def test_login_failing_during_a_barrier_waits_for_the_next(world: World) -> None:
    world.attempt()
    world.attempt("new", "secret")
    assert len(world.clock.barriers) == 1
    world.clock.wait_applied()
    assert world.clock.barriers == []
    world.add("new", "secret")
    world.clock.go_on(BARRIER_INTERVAL_S)
    assert world.admitted == ["new"]


def test_cancelled_logins_take_no_memory_without_a_majority(world: World) -> None:
    for attempt in [world.attempt(f"user{number}", host=f"192.0.2.{number}") for number in range(200)]:
        attempt.cancel()
    assert not world.logins._unsure
    assert not world.logins._waiting


def test_records_of_failed_logins_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "RECORDS_MAX", 10)
    for number in range(20):
        world.fail(user=f"user{number}" + "x" * 10_000, host=f"192.0.2.{number}")
    assert len(world.logins._records) == 10
    assert ("192.0.2.19", None) in world.logins._records
    assert all(len(user or "") < 300 for _, user in world.logins._records)


def test_empty_password_is_never_admitted(world: World) -> None:
    world.add("anna", "")
    world.attempt("anna", "")
    world.clock.wait_applied()
    world.clock.go_on(FIRST_DELAY_S)
    assert [admitted for _, admitted, _ in world.answers] == [False]


@pytest.mark.parametrize(
    ("host", "proxy", "admitted"),
    [
        ("127.0.0.1", "", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("::1", "10.0.0.1", False),
        (HERE, "127.0.0.1", False),
    ],
)
def test_the_loopback_of_a_proxy_elsewhere_is_not_ours(
    world: World, host: str, proxy: str, admitted: bool
) -> None:
    world.add("guest", "right")
    assert world.logins._admits(Login("guest", b"right", host, proxy)) is admitted


def test_a_password_is_in_no_representation() -> None:
    assert "hidden" not in repr(Login("anna", b"hidden", HERE))


def test_refused_login_is_logged_with_its_reason(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.add("guest", "right")
    world.fail(user="guest")
    world.fail()
    only_here = "this user may log in only from the node's own machine (loopback_users)"
    assert caplog.messages == [
        f"login of user 'guest' from {HERE} (PLAIN) refused: {only_here}",
        f"login of user 'anna' from {HERE} (PLAIN) refused",
    ]
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    world.fail()
    world.fail(user="ben")
    assert caplog.messages == [
        f"login of user 'anna' from {HERE} (PLAIN) refused: wrong password",
        f"login of user 'ben' from {HERE} (PLAIN) refused: no such user",
    ]


def test_refused_login_is_logged_though_its_client_has_left(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = world.attempt("anna"), world.attempt("ben")
    second.cancel()
    world.clock.wait_applied()
    first.cancel()
    assert sorted(caplog.messages) == [
        f"login of user '{user}' from {HERE} (PLAIN) refused" for user in ("anna", "ben")
    ]
    assert world.counters.logins_failed == 2
    right = world.attempt(password="right")
    assert right is None
    assert len(caplog.messages) == 2


def test_refused_logins_are_logged_at_a_bounded_rate(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.flood(CHECKS_AT_ONCE)
    for _ in range(5 * CHECKS_PER_S):
        world.attempt()
    assert world.turned_away > 0
    assert len(caplog.messages) <= 2 * (2 * LOG_LINES_PER_S)  # two kinds, and perhaps a second that begins
    assert any("not checked: too many logins" in line for line in caplog.messages)


# On sockets


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


class Client(RawClient):
    """A client that has received connection.start."""

    def __init__(self, broker: LoneBroker, source: str = "127.0.0.1") -> None:
        super().__init__(broker.amqp_port, handshake=False, source=source)
        self.write(HEADER)
        self.expect(Connection.Start)

    def log_in(self, password: str, user: str = "guest") -> None:
        self.send(0, self.start_ok(f"\0{user}\0{password}"))

    def expect_refusal(self) -> None:
        text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
        self.expect_close(403, f"ACCESS_REFUSED - {text}")

    def expect_silence(self, seconds: float = 0.3) -> None:
        with pytest.raises(TimeoutError):
            self.receive(seconds)


def test_a_login_waits_for_the_log_only_if_it_would_fail(broker: LoneBroker) -> None:
    broker.group.holding = True
    with Client(broker) as known, Client(broker) as unknown:
        known.log_in("guest")
        known.expect(Connection.Tune)
        unknown.log_in("secret", "anna")
        unknown.expect_silence()
        broker.add_user("anna", "secret")
        broker.call(broker.group.release)
        unknown.expect(Connection.Tune)
        unknown.send(0, Connection.TuneOk(2047, 131_072, 0), Connection.Open("/"))
        unknown.expect(Connection.OpenOk)


def test_methods_sent_ahead_of_a_login_are_carried_out_after_it(broker: LoneBroker) -> None:
    broker.group.holding = True
    with Client(broker) as client:
        client.log_in("secret", "anna")
        client.send(0, Connection.TuneOk(2047, 131_072, 0), Connection.Open("/"))
        client.send(0, Connection.Close(200, "bye", 0, 0))
        client.expect_silence()
        broker.add_user("anna", "secret")
        broker.call(broker.group.release)
        for answer in (Connection.Tune, Connection.OpenOk, Connection.CloseOk):
            client.expect(answer)
        client.expect_end()


def test_internal_error_after_a_login_ends_only_its_connection(
    broker: LoneBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("of ours")

    broker.group.holding = True
    with Client(broker) as client:
        client.log_in("secret", "anna")
        client.expect_silence()
        broker.add_user("anna", "secret")
        monkeypatch.setattr(ServerConnection, "accept_login", fail)
        broker.call(broker.group.release)
        client.expect_close(541, "INTERNAL_ERROR - an unexpected error in the broker")
    monkeypatch.undo()
    assert "RuntimeError: of ours" in caplog.text
    with RawClient(broker.amqp_port) as client:
        client.close()


def test_login_without_a_majority_ends_at_the_handshake_timeout() -> None:
    with LoneBroker(handshake_timeout_s=0.3) as broker:
        broker.group.holding = True
        with Client(broker) as client:
            client.log_in("wrong")
            client.expect_end()
        broker.pass_some_time()
        assert broker.broker.connections == {}
        broker.call(broker.group.release)


def test_guesses_are_delayed_without_delaying_other_addresses(broker: LoneBroker) -> None:
    took_s: list[float] = []
    for _ in range(4):
        with Client(broker, "127.0.0.2") as guesser:
            began_s = time.monotonic()
            guesser.log_in("wrong")
            guesser.expect_refusal()
            took_s.append(time.monotonic() - began_s)
    for number, seconds in enumerate(took_s):
        assert seconds > FIRST_DELAY_S * 2**number - 0.02
    with Client(broker) as client:
        client.log_in("wrong")
        began_s = time.monotonic()
        client.expect_refusal()
        assert time.monotonic() - began_s < took_s[-1]


def test_client_that_leaves_during_its_login_leaves_no_record(broker: LoneBroker) -> None:
    broker.group.holding = True
    for _ in range(2 * CHECKS_AT_ONCE):
        with Client(broker) as client:
            client.log_in("wrong")
    broker.call(broker.group.release)
    broker.pass_some_time()
    assert broker.broker.logins._waiting == broker.broker.logins._unsure == {}
    assert (broker.slots.unauthenticated, broker.slots.authenticated) == (0, 0)


def test_client_that_sends_much_during_its_login_is_closed(broker: LoneBroker) -> None:
    broker.group.holding = True
    with Client(broker) as client:
        client.log_in("wrong")
        client.write(bytes(100_000))
        client.expect_close(
            506, "RESOURCE_ERROR - more than 65536 octets sent before the connection was open"
        )
    broker.call(broker.group.release)


def test_failed_login_is_logged_briefly_without_the_password(
    broker: LoneBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Client(broker) as client:
        client.log_in("hidden-word", "a\nb" + "x" * 5_000)
        client.expect_refusal()
    [line] = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert "login of user 'a\\nbxxx" in line
    assert "from 127.0.0.1 (PLAIN) refused" in line
    assert len(line) < 200
    assert "hidden" not in caplog.text
