"""Which connections without a login keep their places: single rules, and floods in simulated time."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.net.connection_slots import FAIR_S, SHARE, Place, Places, Stage, source_of
from cluster.net.log_throttle import Complaints

HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def take(places: Places, host: str, gone: list[Place] | None = None) -> Place:
    place = places.take(host)
    assert place is not None
    if gone is not None:
        place.push_out = lambda: gone.append(place)
    return place


def test_a_stranger_keeps_its_place_for_the_fair_time(clock: Clock) -> None:
    places, gone = Places(2, clock=clock), list[Place]()
    first = take(places, HERE, gone)
    clock.now_s = 1.0
    second = take(places, ELSEWHERE, gone)
    clock.now_s = FAIR_S - 0.01
    assert places.take("203.0.113.1") is None
    assert gone == []
    clock.now_s = FAIR_S
    third = take(places, "203.0.113.1", gone)
    assert gone == [first]
    assert places.take("203.0.113.2") is None
    assert second.is_taken
    assert third.is_taken


def test_a_step_of_the_handshake_begins_the_fair_time_again(clock: Clock) -> None:
    places = Places(1, clock=clock)
    place = take(places, HERE)
    for stage in (Stage.TLS_BEGUN, Stage.TLS, Stage.HEADER, Stage.CREDENTIALS):
        clock.now_s += FAIR_S - 0.01
        place.step(stage)
        assert places.take(ELSEWHERE) is None
    clock.now_s += FAIR_S - 0.01
    for stage in Stage:
        place.step(stage)  # the handshake had come so far before
    clock.now_s += 0.01
    assert places.take(ELSEWHERE) is not None
    assert not place.is_taken


def test_the_stranger_that_has_come_least_far_makes_room(clock: Clock) -> None:
    places, gone = Places(3, clock=clock), list[Place]()
    further, silent, late = [take(places, f"192.0.2.{number}", gone) for number in range(3)]
    further.step(Stage.HEADER)
    clock.now_s = 1.0
    late.step(Stage.HEADER)
    clock.now_s = 10.0
    for _ in range(3):
        take(places, ELSEWHERE)
    assert gone == [silent, further, late]


def test_one_address_leaves_places_to_other_addresses(clock: Clock) -> None:
    places = Places(100, clock=clock)
    taken = [place for _ in range(200) if (place := places.take(HERE))]
    assert len(taken) == 75
    others = [place for _ in range(200) if (place := places.take(ELSEWHERE))]
    assert len(others) == 19
    assert places.take("203.0.113.1") is not None
    assert all(place.is_taken for place in taken)


def test_an_address_with_its_share_pushes_out_its_own_strangers(clock: Clock) -> None:
    places, gone = Places(100, clock=clock), list[Place]()
    lone = take(places, ELSEWHERE, gone)
    many = [take(places, HERE, gone) for _ in range(75)]
    clock.now_s = 2 * FAIR_S
    for _ in range(75):
        take(places, HERE, gone)
    assert gone == many
    assert lone.is_taken


def test_a_connection_with_a_login_is_not_pushed_out(clock: Clock) -> None:
    places, gone = Places(4, total_max=5, clock=clock), list[Place]()
    known = [take(places, HERE, gone) for _ in range(3)]
    for place in known:
        place.make_known()
    strangers = [take(places, HERE, gone) for _ in range(2)]
    assert places.take(HERE) is None
    clock.now_s = 100.0
    for place in strangers:
        place.make_known()
    assert places.take(ELSEWHERE) is None
    assert (places.strangers, places.known, gone) == (0, 5, [])
    known[0].leave()
    assert places.take(ELSEWHERE) is not None
    assert known[1].is_taken


def test_a_connection_of_the_node_itself_needs_no_free_place(clock: Clock) -> None:
    places = Places(4, total_max=5, clock=clock)
    for number in range(4):
        take(places, f"192.0.2.{number}")
    own = places.take_known("127.0.0.1")
    assert own is not None
    assert (places.strangers, places.known) == (4, 1)
    assert places.take_known("127.0.0.1") is None
    own.leave()
    assert places.known == 0


def test_all_clients_that_there_may_be_can_be_of_one_address() -> None:
    places = Places(2, total_max=1000)
    for _ in range(1000):
        take(places, HERE).make_known()
    assert places.known == 1000


def test_the_address_that_a_proxy_tells_counts(clock: Clock) -> None:
    places = Places(100, clock=clock)
    proxied: list[Place] = []
    for _ in range(80):
        place = take(places, HERE)
        if place.comes_from(ELSEWHERE):
            proxied.append(place)
        else:
            place.leave()
    assert len(proxied) == 75
    assert take(places, HERE).comes_from("203.0.113.1")
    assert all(place.is_taken for place in proxied)


def test_a_stranger_again_has_the_fair_time_once_more(clock: Clock) -> None:
    places, gone = Places(2, clock=clock), list[Place]()
    first, second = take(places, HERE, gone), take(places, HERE, gone)
    first.make_known()
    clock.now_s = FAIR_S
    first.make_stranger()
    third = take(places, ELSEWHERE, gone)
    assert gone == [second]
    assert places.take(ELSEWHERE) is None
    assert first.is_taken
    assert third.is_taken


def test_the_log_says_why_a_connection_has_no_place(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"), lines=3)
    places = Places(4, total_max=4, clock=clock, complaints=complaints, what="HTTP connection")
    for _ in range(4):
        places.take(HERE)
    known = [take(places, ELSEWHERE)]
    places.take("203.0.113.1")
    clock.now_s = 4.5
    known += [take(places, "203.0.113.1") for _ in range(3)]
    for place in known:
        place.make_known()
    places.take(HERE)
    refused, dropped = (
        "HTTP connection from {} refused: {}",
        (
            "HTTP connection from 192.0.2.1 dropped before its login: "
            "no progress for 4.5 s since its arrival, and another connection needs its place"
        ),
    )
    assert [record.getMessage() for record in caplog.records] == [
        refused.format(HERE, "its address has 3 without a login, and 1 more may come from other addresses"),
        refused.format("203.0.113.1", "4 without a login are there, and there may be no more"),
        *[dropped] * 3,
        refused.format(HERE, "4 with a login are there, and there may be no more"),
    ]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7), st.integers(0, 3))))
def test_the_counts_are_those_of_the_connections(steps: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    places = Places(6, total_max=6, clock=clock)
    known, strangers = set[Place](), set[Place]()

    for action, which, host in steps:
        clock.now_s += 1.0
        there = sorted(known | strangers, key=id)
        if action <= 1:
            place = places.take(f"192.0.2.{host}")
            if place is not None:
                place.push_out = partial(strangers.remove, place)
                strangers.add(place)
        elif there:
            place = there[which % len(there)]
            if action == 2:
                place.leave()
                known.discard(place)
                strangers.discard(place)
            elif action == 3:
                place.make_known()
                known.add(place)
                strangers.discard(place)
            elif action == 4:
                known.discard(place)
                strangers.add(place)
                place.push_out = partial(strangers.remove, place)
                place.make_stranger()
            elif action == 5:
                place.step(Stage(1 + which % 4))
            else:
                place.comes_from(f"192.0.2.{host}")
        assert (places.strangers, places.known) == (len(strangers), len(known))
        assert places.strangers + places.known <= 6
        assert all(place.is_taken for place in known | strangers)


# Floods in simulated time

STRANGERS_MAX, TOTAL_MAX = 60, 400
HONEST, ROUND_TRIP_S, PAUSE_S = 40, 0.6, (0.1, 0.5)
ATTACKS_PER_S = 30.0
HANDSHAKE_TIMEOUT_S = 10.0
IN_WITHIN_S = 45.0
"""When all clients must be in. Attackers that do all they can hold a place for 10 s, so 4 to 6 places come free in a
second, for which 40 clients compete with 30 attackers a second."""


class Attack(Enum):
    NOTHING = auto()
    SILENT = auto()
    HEADER = auto()
    """The header comes at once, and then nothing."""
    SLOW = auto()
    """Each step is as late as it may be."""
    WRONG_LOGIN = auto()
    """All steps come at once, and the answer is held back."""
    HANGS_UP = auto()
    """The connection ends by itself after a while."""


class Flood:
    """Clients that log in, and attackers, at one node."""

    def __init__(self, random: Random, attack: Attack, attackers: int | None, honest_hosts: int) -> None:
        """Without a number of `attackers` they have the clients' address; the clients have `honest_hosts` of them."""
        self.random = random
        self.clock = Clock()
        self.places = Places(STRANGERS_MAX, TOTAL_MAX, clock=self.clock)
        self.attack = attack
        self.attackers = attackers
        self.honest_hosts = honest_hosts
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.refusals = 0
        self.inside = 0
        self.attacking: set[Place] = set()

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.clock.now_s + seconds, next(self.numbers), event))

    def run(self) -> None:
        if self.attack is not Attack.NOTHING:
            self.attack_begins()
            self.pass_time(2 * HANDSHAKE_TIMEOUT_S)
        began_s = self.clock.now_s
        for number in range(HONEST):
            self.client(f"192.0.2.{number % self.honest_hosts}")
        while self.inside < HONEST:
            assert self.clock.now_s - began_s < IN_WITHIN_S
            self.pass_time(0.1)

    def pass_time(self, seconds: float) -> None:
        end_s = self.clock.now_s + seconds
        while self.events and self.events[0][0] <= end_s:
            self.clock.now_s, _, event = heapq.heappop(self.events)
            event()
            assert self.places.strangers <= STRANGERS_MAX
            assert self.places.strangers + self.places.known <= TOTAL_MAX
        self.clock.now_s = end_s

    def take(self, host: str, pushed_out: Callable[[], None]) -> Place | None:
        free = self.places.free
        place = self.places.take(host)
        if place is None:
            of_source = self.places._by_source.get(host)
            # No refusal while the address has less than its share.
            assert (of_source.count if of_source is not None else 0) >= SHARE * free
            return None

        def out() -> None:
            assert self.clock.now_s - place.since_s >= FAIR_S
            pushed_out()

        place.push_out = out
        return place

    # Clients

    def client(self, host: str) -> None:
        def again() -> None:
            self.refusals += 1
            self.later(self.random.uniform(*PAUSE_S), lambda: self.client(host))

        place = self.take(host, again)
        if place is None:
            again()
            return

        def header() -> None:
            if place.is_taken:
                place.step(Stage.HEADER)
                self.later(ROUND_TRIP_S, login)

        def login() -> None:
            if place.is_taken:
                place.step(Stage.CREDENTIALS)
                place.make_known()
                self.inside += 1

        self.later(ROUND_TRIP_S, header)

    # Attackers

    def attack_begins(self) -> None:
        self.attacker()
        self.later(self.random.expovariate(ATTACKS_PER_S), self.attack_begins)

    def attacker(self) -> None:
        host = "192.0.2.0" if self.attackers is None else f"10.0.0.{self.random.randrange(self.attackers)}"
        place = self.take(host, lambda: self.attacking.discard(place))
        if place is None:
            return
        self.attacking.add(place)
        if self.attackers == 1:
            assert len(self.attacking) <= STRANGERS_MAX * SHARE // (SHARE + 1)

        def end() -> None:
            place.leave()
            self.attacking.discard(place)

        self.later(HANDSHAKE_TIMEOUT_S, end)
        if self.attack in (Attack.HEADER, Attack.WRONG_LOGIN):
            place.step(Stage.HEADER)
        if self.attack is Attack.WRONG_LOGIN:
            place.step(Stage.CREDENTIALS)
        if self.attack is Attack.SLOW:
            self.later(FAIR_S - 0.1, lambda: place.step(Stage.HEADER))
            self.later(2 * FAIR_S - 0.2, lambda: place.step(Stage.CREDENTIALS))
        if self.attack is Attack.HANGS_UP:
            self.later(self.random.uniform(0.0, FAIR_S), end)


@pytest.mark.parametrize("attack", Attack)
@given(
    seed=st.integers(0, 2**32),
    attackers=st.sampled_from([None, 1, 7, 250]),
    honest_hosts=st.sampled_from([1, 3, HONEST]),
)
def test_clients_that_go_on_get_in_beside_any_attack(
    attack: Attack, seed: int, attackers: int | None, honest_hosts: int
) -> None:
    Flood(Random(seed), attack, attackers, honest_hosts).run()


def test_attackers_of_one_address_delay_no_other_address() -> None:
    for attack in Attack:
        flood = Flood(Random(1), attack, 1, HONEST)
        flood.attack_begins()
        flood.pass_time(2 * HANDSHAKE_TIMEOUT_S)
        for number in range(14):
            flood.client(f"192.0.2.{number}")
        flood.pass_time(2 * ROUND_TRIP_S + 0.01)
        assert (flood.inside, flood.refusals) == (14, 0)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:0:0:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("", "", True),
    ],
)
def test_addresses_count_as_one_if_one_host_may_have_them(one: str, other: str, is_same: bool) -> None:
    assert (source_of(one) == source_of(other)) is is_same


def test_connection_without_a_slot_takes_a_quick_slot(clock: Clock) -> None:
    places, gone = Places(75, quick_max=25, clock=clock), list[Place]()
    flood = [take(places, HERE, gone) for _ in range(57)]  # three quarters of 75
    client = take(places, HERE, gone)
    flood += [take(places, HERE, gone) for _ in range(24)]
    assert gone == []
    client.make_known()
    assert (places.known, places.strangers) == (1, 81)
    flood += [take(places, HERE, gone) for _ in range(5)]
    assert gone == flood[57:61]
    assert places.strangers == 82


def test_quick_slot_becomes_a_fair_one_with_a_step(clock: Clock) -> None:
    places, gone = Places(6, quick_max=2, clock=clock), list[Place]()
    first = [take(places, f"192.0.2.{number}", gone) for number in range(6)]
    client = take(places, ELSEWHERE, gone)
    first[0].leave()
    client.step(Stage.HEADER)
    for number in range(10):
        take(places, f"203.0.113.{number}", gone)
    assert client.is_taken
    assert client not in gone


def test_connections_with_a_login_take_the_place_of_quick_slots(clock: Clock) -> None:
    places, gone = Places(6, total_max=8, quick_max=2, clock=clock), list[Place]()
    first = [take(places, f"192.0.2.{number}", gone) for number in range(6)]
    quick = [take(places, ELSEWHERE, gone) for _ in range(2)]
    for place in first:
        place.make_known()
    later = [take(places, f"203.0.113.{number}", gone) for number in range(2)]
    assert gone == quick
    assert places.take("198.51.100.1") is None
    assert all(place.is_taken for place in [*first, *later])
