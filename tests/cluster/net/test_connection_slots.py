"""Which connections without a login keep their slots: single rules, and floods in simulated time."""

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

from cluster.net.connection_slots import FAIR_S, SHARE, ConnectionSlots, Slot, SlotLimits, Stage, source_of
from cluster.net.log_throttle import ThrottledLog

HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def take(slots: ConnectionSlots, host: str, evicted: list[Slot] | None = None) -> Slot:
    slot = slots.take(host)
    assert slot is not None
    if evicted is not None:
        slot.evict = lambda: evicted.append(slot)
    return slot


def test_unauthenticated_connection_keeps_its_slot_for_a_time(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(2), clock=clock), list[Slot]()
    first = take(slots, HERE, evicted)
    clock.now_s = 1.0
    second = take(slots, ELSEWHERE, evicted)
    clock.now_s = FAIR_S - 0.01
    assert slots.take("203.0.113.1") is None
    assert evicted == []
    clock.now_s = FAIR_S
    third = take(slots, "203.0.113.1", evicted)
    assert evicted == [first]
    assert slots.take("203.0.113.2") is None
    assert second.is_taken
    assert third.is_taken


def test_a_step_of_the_handshake_begins_the_fair_time_again(clock: Clock) -> None:
    slots = ConnectionSlots(SlotLimits(1), clock=clock)
    slot = take(slots, HERE)
    for stage in (Stage.TLS_BEGUN, Stage.TLS, Stage.HEADER, Stage.CREDENTIALS):
        clock.now_s += FAIR_S - 0.01
        slot.step(stage)
        assert slots.take(ELSEWHERE) is None
    clock.now_s += FAIR_S - 0.01
    for stage in Stage:
        slot.step(stage)  # the handshake had come so far before
    clock.now_s += 0.01
    assert slots.take(ELSEWHERE) is not None
    assert not slot.is_taken


def test_connection_at_the_earliest_stage_is_evicted_first(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(3), clock=clock), list[Slot]()
    further, silent, late = [take(slots, f"192.0.2.{number}", evicted) for number in range(3)]
    further.step(Stage.HEADER)
    clock.now_s = 1.0
    late.step(Stage.HEADER)
    clock.now_s = 10.0
    for _ in range(3):
        take(slots, ELSEWHERE)
    assert evicted == [silent, further, late]


def test_address_leaves_slots_to_different_addresses(clock: Clock) -> None:
    slots = ConnectionSlots(SlotLimits(100), clock=clock)
    taken = [slot for _ in range(200) if (slot := slots.take(HERE))]
    assert len(taken) == 75
    fillers = [slot for _ in range(200) if (slot := slots.take(ELSEWHERE))]
    assert len(fillers) == 19
    assert slots.take("203.0.113.1") is not None
    assert all(slot.is_taken for slot in taken)


def test_address_at_its_share_evicts_its_own_connections(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(100), clock=clock), list[Slot]()
    lone = take(slots, ELSEWHERE, evicted)
    many = [take(slots, HERE, evicted) for _ in range(75)]
    clock.now_s = 2 * FAIR_S
    for _ in range(75):
        take(slots, HERE, evicted)
    assert evicted == many
    assert lone.is_taken


def test_a_connection_with_a_login_is_not_pushed_out(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(4, total_max=5), clock=clock), list[Slot]()
    known = [take(slots, HERE, evicted) for _ in range(3)]
    for slot in known:
        slot.mark_authenticated()
    unauthenticated = [take(slots, HERE, evicted) for _ in range(2)]
    assert slots.take(HERE) is None
    clock.now_s = 100.0
    for slot in unauthenticated:
        slot.mark_authenticated()
    assert slots.take(ELSEWHERE) is None
    assert (slots.unauthenticated, slots.authenticated, evicted) == (0, 5, [])
    known[0].release()
    assert slots.take(ELSEWHERE) is not None
    assert known[1].is_taken


def test_a_connection_of_the_node_itself_needs_no_free_place(clock: Clock) -> None:
    slots = ConnectionSlots(SlotLimits(4, total_max=5), clock=clock)
    for number in range(4):
        take(slots, f"192.0.2.{number}")
    own = slots.take_authenticated("127.0.0.1")
    assert own is not None
    assert (slots.unauthenticated, slots.authenticated) == (4, 1)
    assert slots.take_authenticated("127.0.0.1") is None
    own.release()
    assert slots.authenticated == 0


def test_all_authenticated_clients_may_have_the_same_address() -> None:
    slots = ConnectionSlots(SlotLimits(2, total_max=1000))
    for _ in range(1000):
        take(slots, HERE).mark_authenticated()
    assert slots.authenticated == 1000


def test_address_from_the_proxy_header_counts(clock: Clock) -> None:
    slots = ConnectionSlots(SlotLimits(100), clock=clock)
    proxied: list[Slot] = []
    for _ in range(80):
        slot = take(slots, HERE)
        if slot.reassign(ELSEWHERE):
            proxied.append(slot)
        else:
            slot.release()
    assert len(proxied) == 75
    assert take(slots, HERE).reassign("203.0.113.1")
    assert all(slot.is_taken for slot in proxied)


def test_connection_that_logs_out_has_the_fair_time_again(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(2), clock=clock), list[Slot]()
    first, second = take(slots, HERE, evicted), take(slots, HERE, evicted)
    first.mark_authenticated()
    clock.now_s = FAIR_S
    first.mark_unauthenticated()
    third = take(slots, ELSEWHERE, evicted)
    assert evicted == [second]
    assert slots.take(ELSEWHERE) is None
    assert first.is_taken
    assert third.is_taken


def test_reason_for_refusing_a_connection_is_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    throttled_log = ThrottledLog(logging.getLogger("test"), lines=3)
    slots = ConnectionSlots(
        SlotLimits(4, total_max=4), clock=clock, throttled_log=throttled_log, label="HTTP connection"
    )
    for _ in range(4):
        slots.take(HERE)
    known = [take(slots, ELSEWHERE)]
    slots.take("203.0.113.1")
    clock.now_s = 4.5
    known += [take(slots, "203.0.113.1") for _ in range(3)]
    for slot in known:
        slot.mark_authenticated()
    slots.take(HERE)
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
def test_counts_equal_the_open_connections(steps: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    slots = ConnectionSlots(SlotLimits(6, total_max=6), clock=clock)
    known, unauthenticated = set[Slot](), set[Slot]()

    for action, which, host in steps:
        clock.now_s += 1.0
        there = sorted(known | unauthenticated, key=id)
        if action <= 1:
            slot = slots.take(f"192.0.2.{host}")
            if slot is not None:
                slot.evict = partial(unauthenticated.remove, slot)
                unauthenticated.add(slot)
        elif there:
            slot = there[which % len(there)]
            if action == 2:
                slot.release()
                known.discard(slot)
                unauthenticated.discard(slot)
            elif action == 3:
                slot.mark_authenticated()
                known.add(slot)
                unauthenticated.discard(slot)
            elif action == 4:
                known.discard(slot)
                unauthenticated.add(slot)
                slot.evict = partial(unauthenticated.remove, slot)
                slot.mark_unauthenticated()
            elif action == 5:
                slot.step(Stage(1 + which % 4))
            else:
                slot.reassign(f"192.0.2.{host}")
        assert (slots.unauthenticated, slots.authenticated) == (len(unauthenticated), len(known))
        assert slots.unauthenticated + slots.authenticated <= 6
        assert all(slot.is_taken for slot in known | unauthenticated)


# Floods in simulated time

STRANGERS_MAX, TOTAL_MAX = 60, 400
HONEST, ROUND_TRIP_S, PAUSE_S = 40, 0.6, (0.1, 0.5)
ATTACKS_PER_S = 30.0
HANDSHAKE_TIMEOUT_S = 10.0
IN_WITHIN_S = 45.0
"""Time until all clients must be logged in. Attackers can hold a slot for 10 s at most, so 4 to 6 slots become free
in a second, for which 40 clients compete with 30 attackers a second."""


class Attack(Enum):
    NOTHING = auto()
    SILENT = auto()
    HEADER = auto()
    """Sends the header at once, and no further bytes."""
    SLOW = auto()
    """Each step is as late as it may be."""
    WRONG_LOGIN = auto()
    """All steps come at once, and the answer is held back."""
    HANGS_UP = auto()
    """The connection ends by itself after a while."""


class Flood:
    """Honest clients and attackers at a node."""

    def __init__(self, random: Random, attack: Attack, attackers: int | None, honest_hosts: int) -> None:
        """Without a number of `attackers` they have the clients' address; the clients have `honest_hosts` of them."""
        self.random = random
        self.clock = Clock()
        self.slots = ConnectionSlots(SlotLimits(STRANGERS_MAX, TOTAL_MAX), clock=self.clock)
        self.attack = attack
        self.attackers = attackers
        self.honest_hosts = honest_hosts
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.refusals = 0
        self.inside = 0
        self.attacking: set[Slot] = set()

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
            assert self.slots.unauthenticated <= STRANGERS_MAX
            assert self.slots.unauthenticated + self.slots.authenticated <= TOTAL_MAX
        self.clock.now_s = end_s

    def take(self, host: str, pushed_out: Callable[[], None]) -> Slot | None:
        free = self.slots.free
        slot = self.slots.take(host)
        if slot is None:
            of_source = self.slots._by_source.get(host)
            # No refusal while the address has less than its share.
            assert (of_source.count if of_source is not None else 0) >= SHARE * free
            return None

        def out() -> None:
            assert self.clock.now_s - slot.since_s >= FAIR_S
            pushed_out()

        slot.evict = out
        return slot

    # Clients

    def client(self, host: str) -> None:
        def again() -> None:
            self.refusals += 1
            self.later(self.random.uniform(*PAUSE_S), lambda: self.client(host))

        slot = self.take(host, again)
        if slot is None:
            again()
            return

        def header() -> None:
            if slot.is_taken:
                slot.step(Stage.HEADER)
                self.later(ROUND_TRIP_S, login)

        def login() -> None:
            if slot.is_taken:
                slot.step(Stage.CREDENTIALS)
                slot.mark_authenticated()
                self.inside += 1

        self.later(ROUND_TRIP_S, header)

    # Attackers

    def attack_begins(self) -> None:
        self.attacker()
        self.later(self.random.expovariate(ATTACKS_PER_S), self.attack_begins)

    def attacker(self) -> None:
        host = "192.0.2.0" if self.attackers is None else f"10.0.0.{self.random.randrange(self.attackers)}"
        slot = self.take(host, lambda: self.attacking.discard(slot))
        if slot is None:
            return
        self.attacking.add(slot)
        if self.attackers == 1:
            assert len(self.attacking) <= STRANGERS_MAX * SHARE // (SHARE + 1)

        def end() -> None:
            slot.release()
            self.attacking.discard(slot)

        self.later(HANDSHAKE_TIMEOUT_S, end)
        if self.attack in (Attack.HEADER, Attack.WRONG_LOGIN):
            slot.step(Stage.HEADER)
        if self.attack is Attack.WRONG_LOGIN:
            slot.step(Stage.CREDENTIALS)
        if self.attack is Attack.SLOW:
            self.later(FAIR_S - 0.1, lambda: slot.step(Stage.HEADER))
            self.later(2 * FAIR_S - 0.2, lambda: slot.step(Stage.CREDENTIALS))
        if self.attack is Attack.HANGS_UP:
            self.later(self.random.uniform(0.0, FAIR_S), end)


@pytest.mark.parametrize("attack", Attack)
@given(
    seed=st.integers(0, 2**32),
    attackers=st.sampled_from([None, 1, 7, 250]),
    honest_hosts=st.sampled_from([1, 3, HONEST]),
)
def test_clients_that_proceed_log_in_during_any_attack(
    attack: Attack, seed: int, attackers: int | None, honest_hosts: int
) -> None:
    Flood(Random(seed), attack, attackers, honest_hosts).run()


def test_attackers_of_an_address_do_not_delay_clients_elsewhere() -> None:
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
def test_addresses_of_the_same_host_count_together(one: str, other: str, is_same: bool) -> None:
    assert (source_of(one) == source_of(other)) is is_same


def test_connection_without_a_slot_takes_a_quick_slot(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(75, quick_max=25), clock=clock), list[Slot]()
    flood = [take(slots, HERE, evicted) for _ in range(57)]  # three quarters of 75
    client = take(slots, HERE, evicted)
    flood += [take(slots, HERE, evicted) for _ in range(24)]
    assert evicted == []
    client.mark_authenticated()
    assert (slots.authenticated, slots.unauthenticated) == (1, 81)
    flood += [take(slots, HERE, evicted) for _ in range(5)]
    assert evicted == flood[57:61]
    assert slots.unauthenticated == 82


def test_quick_slot_becomes_a_fair_slot_with_a_step(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(6, quick_max=2), clock=clock), list[Slot]()
    first = [take(slots, f"192.0.2.{number}", evicted) for number in range(6)]
    client = take(slots, ELSEWHERE, evicted)
    first[0].release()
    client.step(Stage.HEADER)
    for number in range(10):
        take(slots, f"203.0.113.{number}", evicted)
    assert client.is_taken
    assert client not in evicted


def test_connections_with_a_login_take_the_place_of_quick_slots(clock: Clock) -> None:
    slots, evicted = ConnectionSlots(SlotLimits(6, total_max=8, quick_max=2), clock=clock), list[Slot]()
    first = [take(slots, f"192.0.2.{number}", evicted) for number in range(6)]
    quick = [take(slots, ELSEWHERE, evicted) for _ in range(2)]
    for slot in first:
        slot.mark_authenticated()
    later = [take(slots, f"203.0.113.{number}", evicted) for number in range(2)]
    assert evicted == quick
    assert slots.take("198.51.100.1") is None
    assert all(slot.is_taken for slot in [*first, *later])
