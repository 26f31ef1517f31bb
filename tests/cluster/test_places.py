"""Who has to go when too many strangers come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.strangers import Place, Places, source_of

HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"


def take(places: Places, host: str, pushed_out: list[Place] | None = None) -> Place:
    place = places.take(host)
    assert place is not None
    gone = [] if pushed_out is None else pushed_out
    place.push_out = lambda: gone.append(place)
    return place


def test_one_more_pushes_out_the_oldest_of_the_address_that_has_most() -> None:
    places, gone = Places(4), list[Place]()
    lone = take(places, ELSEWHERE, gone)
    many = [take(places, HERE, gone) for _ in range(9)]
    assert gone == many[:6]
    assert lone.is_taken
    assert (places.strangers, places.known) == (4, 0)
    take(places, "203.0.113.1", gone)
    assert gone == many[:7]


def test_of_addresses_with_equally_many_the_first_has_to_go() -> None:
    places, gone = Places(3), list[Place]()
    taken = [take(places, f"192.0.2.{number}", gone) for number in range(10)]
    assert gone == taken[:7]


def test_who_is_known_is_not_pushed_out_and_takes_the_room_of_strangers_only() -> None:
    places, gone = Places(4, total_max=5), list[Place]()
    known = [take(places, HERE, gone) for _ in range(3)]
    for place in known:
        place.make_known()
    strangers = [take(places, HERE, gone) for _ in range(5)]
    assert gone == strangers[:3]
    for place in strangers[3:]:
        place.make_known()
    assert places.take(ELSEWHERE) is None
    assert (places.strangers, places.known) == (0, 5)
    known[0].leave()
    assert places.take(ELSEWHERE) is not None
    assert known[1].is_taken


def test_all_clients_that_there_may_be_can_be_of_one_address() -> None:
    places = Places(2, total_max=1000)
    for _ in range(1000):
        take(places, HERE).make_known()
    assert places.known == 1000


def test_what_a_proxy_tells_counts() -> None:
    places, gone = Places(4), list[Place]()
    proxied = [take(places, HERE, gone) for _ in range(4)]
    for number, place in enumerate(proxied):
        place.comes_from(f"198.51.100.{number % 2}")
    proxied[1].leave()
    flood = [take(places, "198.51.100.0", gone) for _ in range(3)]
    assert gone == [proxied[0], proxied[2]]
    assert [place.is_taken for place in (proxied[3], *flood)] == [True] * 4


def test_who_is_a_stranger_again_is_the_youngest() -> None:
    places, gone = Places(2), list[Place]()
    first = take(places, HERE, gone)
    first.make_known()
    second, third = take(places, HERE, gone), take(places, HERE, gone)
    first.make_stranger()
    assert gone == [second]
    take(places, HERE, gone)
    assert gone == [second, third]
    assert first.is_taken


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(0, 3))))
def test_what_is_counted_is_what_there_is(steps: list[tuple[int, int, int]]) -> None:
    places = Places(4, total_max=6)
    known, strangers = set[Place](), set[Place]()

    for action, which, host in steps:
        there = sorted(known | strangers, key=id)
        if action <= 1:
            place = places.take(f"192.0.2.{host}")
            if place is None:
                assert len(known) == 6
                continue
            place.push_out = lambda place=place: strangers.remove(place)
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
                place.make_stranger()
            else:
                place.comes_from(f"192.0.2.{host}")
        assert (places.strangers, places.known) == (len(strangers), len(known))
        assert places.strangers <= 4
        assert places.strangers + places.known <= 6
        assert all(place.is_taken for place in known | strangers)


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
def test_what_counts_as_one_address(one: str, other: str, is_same: bool) -> None:
    assert (source_of(one) == source_of(other)) is is_same
