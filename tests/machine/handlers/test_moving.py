"""Commands of moves: each step is applied once, in spite of changes of the queues between the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.catalog.limits import table_bytes
from qq.machine.protocol import commands as c
from qq.machine.protocol.codec import InvalidCommand, check_command
from qq.machine.protocol.death_history import History
from qq.machine.protocol.refusals import Refused
from qq.machine.queue.backlog import PLACES, RETURNED, place_of
from qq.machine.queue.moves import (
    ENDED_IN_VHOST_MAX,
    FILTER_BYTES_MAX,
    RUNNING_IN_VHOST_MAX,
    RUNNING_MAX,
    MovePiece,
    MoveState,
)
from qq.ranges import NORMAL
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.machine.machine_driver import (
    Driver,
    consume,
    declare,
    held_messages,
    publish,
    ready_messages,
    reloaded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.queue.queue import Queue

MOVE = c.BeginMove("/", "m", "guest", "q", "to", 0, 0, "", "", {}, "", False)
PLACE = place_of(NORMAL)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(8)
    driver.apply(declare("q"), declare("to"))
    return driver


def queue(driver: Driver, name: str) -> Queue:
    return driver.machine.vhosts["/"].queues[name]


def counts(driver: Driver, *names: str) -> list[int]:
    return [queue(driver, name).ready for name in names or ("q", "to")]


def move(driver: Driver, name: str = "m") -> MoveState:
    return driver.machine.moves.all["/", name]


def step(
    number: int,
    *pieces: tuple[int, int],
    place: int = PLACE,
    then: tuple[int, int] = (PLACES, 0),
    priority: int = NO_PRIORITY,
    ttl_ms: int = NO_TTL,
    name: str = "m",
) -> c.MoveMessages:
    """Return a step with the examined pieces (key and count); it is the last unless `then` continues it."""
    numbers: list[int] = []
    examined = 0
    for first, count in pieces:
        numbers += MovePiece(first, count, examined, priority, ttl_ms)
        examined += count
    return c.MoveMessages("/", name, number, place, numbers, examined, *then)


def places(driver: Driver, name: str) -> list[tuple[int, int]]:
    return [message[:2] for message in ready_messages(queue(driver, name))]


def test_a_step_moves_messages_in_order_and_is_taken_once(driver: Driver) -> None:
    driver.apply(publish(10))
    before = places(driver, "q")
    driver.apply(MOVE)
    taken = step(0, (2, 3), (7, 1), then=(PLACE, 8))
    driver.apply(taken, taken)
    driver.apply(taken)
    assert places(driver, "to") == [before[at] for at in (2, 3, 4, 7)]
    assert places(driver, "q") == [before[at] for at in (0, 1, 5, 6, 8, 9)]
    known = move(driver)
    assert (known.step, known.place, known.key, known.moved, known.examined) == (1, PLACE, 8, 4, 4)
    assert (known.ready, known.returned_end, known.position_end) == (10, 0, 10)
    driver.time_ms += 5
    driver.apply(step(1))
    assert (known.state, known.ended_ms, driver.machine.moves.running) == ("finished", driver.time_ms, {})
    driver.apply(step(2, (0, 1)))
    assert counts(driver) == [6, 4]
    reloaded(driver.machine)


def test_a_step_of_the_future_is_not_taken(driver: Driver) -> None:
    driver.apply(publish(2))
    driver.apply(MOVE)
    driver.apply(step(1, (0, 2)))
    assert (counts(driver), move(driver).step) == ([2, 0], 0)


def test_move_leaves_messages_that_are_no_longer_ready(driver: Driver) -> None:
    """Since the leader examined it, it was delivered, or the queue was purged."""
    driver.apply(publish(5), MOVE)
    driver.apply(consume(1, "q", 2))
    driver.apply(step(0, (0, 5)))
    assert counts(driver) == [0, 3]
    [consumer] = driver.machine.consumers.values()
    assert len(held_messages(consumer)) == 2
    assert (move(driver).moved, move(driver).examined) == (3, 5)


def test_returned_message_is_moved_by_the_order_of_its_return(driver: Driver) -> None:
    driver.apply(declare("quorum", x_queue_type="quorum"))
    driver.apply(publish(4, "quorum"), consume(1, "quorum", 3))
    driver.apply(c.Return(1, 1, 1), c.Cancel(1, 1), c.Return(1, 0, 0), c.Return(1, 2, 2))
    source = queue(driver, "quorum")
    order = places(driver, "quorum")
    assert [order[at][1] & 0xFF for at in range(4)] == [1, 0, 2, 3]
    driver.apply(MOVE._replace(source="quorum"))
    assert move(driver).returned_end == 3
    driver.apply(step(0, (1, 2), place=RETURNED, then=(PLACE, 0)))
    assert [message[1] & 0xFF for message in ready_messages(source)] == [1, 3]
    assert [message[2] for message in ready_messages(queue(driver, "to"))] == [0, 0], "deliveries count anew"
    reloaded(driver.machine)


def test_message_that_returns_during_a_move_is_moved_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.apply(declare("quorum", x_queue_type="quorum"))
    for _ in range(6):
        driver.apply(publish(1, "quorum"))
    driver.apply(consume(1, "quorum", 6))
    for limits in ("qq.machine.queue.queue.RANGES_AT_ONCE", "qq.machine.handlers.core.RANGES_AT_ONCE"):
        monkeypatch.setattr(limits, 0)
    monkeypatch.setattr("qq.machine.handlers.core.RANGES_MAX", 1)
    driver.apply(c.SessionDown(1))
    source = queue(driver, "quorum")
    assert source.returning
    driver.apply(MOVE._replace(source="quorum"))
    driver.apply(step(0, (0, 1), place=RETURNED, then=(RETURNED, 1)))
    assert 0 <= source.came_back <= source.ready
    driver.lead()
    assert (source.ready, queue(driver, "to").ready) == (5, 1)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_the_destination_takes_messages_in_by_its_own_rules(driver: Driver, kind: str) -> None:
    arguments = {"x_max_priority": 9} if kind == "classic" else {}
    driver.apply(declare("own", x_queue_type=kind, x_message_ttl=700, **arguments))
    driver.apply(publish(3, priority=5, ttl_ms=900))
    driver.time_ms += 600
    driver.apply(MOVE._replace(destination="own"))
    driver.apply(step(0, (0, 1), then=(PLACE, 1), priority=5, ttl_ms=900))
    driver.apply(step(1, (1, 1), then=(PLACE, 2), priority=5, ttl_ms=80))
    driver.apply(publish(1, "own", priority=1))
    expiries = [messages.expires_ms for _, messages in queue(driver, "own").peek(place_of(5), 0, 99, 99)]
    assert expiries == [driver.time_ms + 700, driver.time_ms + 80]


def test_a_message_that_has_expired_is_not_moved(driver: Driver) -> None:
    """It is dropped at the end of the same entry, as it would have been anyway."""
    driver.apply(publish(1, ttl_ms=100), publish(1))
    driver.apply(MOVE)
    driver.time_ms += 101
    driver.apply(step(0, (0, 2)))
    assert counts(driver) == [0, 1]


def test_move_fills_a_full_destination_and_waits(driver: Driver) -> None:
    driver.apply(declare("full", x_max_length=5, x_overflow="reject-publish"), publish(2, "full"))
    driver.apply(publish(9))
    order = places(driver, "q")
    driver.apply(MOVE._replace(destination="full"))
    driver.apply(step(0, (1, 1), (3, 6)))
    known = move(driver)
    assert places(driver, "full")[2:] == [order[at] for at in (1, 3, 4)]
    assert (known.state, known.waits_for, known.place, known.key, known.examined) == (
        "running",
        "full",
        PLACE,
        5,
        3,
    )
    driver.apply(step(1, (5, 4)))
    assert (known.step, known.key, known.moved, known.waits_for) == (2, 5, 3, "full")
    driver.apply(c.PurgeQueue(1, 1, "full"), step(2, (5, 4)))
    assert (known.state, known.moved, known.waits_for) == ("finished", 7, "")
    assert places(driver, "full") == [order[at] for at in (5, 6, 7, 8)]
    assert places(driver, "q") == [order[at] for at in (0, 2)]
    reloaded(driver.machine)


def test_a_limit_in_octets_is_kept_too(driver: Driver) -> None:
    driver.apply(declare("full", x_max_length_bytes=25, x_overflow="reject-publish"))
    driver.apply(publish(3), messages=[b"x" * 10] * 3)
    driver.apply(MOVE._replace(destination="full"), step(0, (0, 3)))
    assert (counts(driver, "q", "full"), move(driver).key) == ([1, 2], 2)


def test_consumers_make_room_for_a_move_into_a_queue_of_length_0(driver: Driver) -> None:
    driver.apply(declare("full", x_max_length=0, x_overflow="reject-publish"), consume(1, "full", 2))
    driver.apply(publish(3))
    driver.apply(MOVE._replace(destination="full"), step(0, (0, 3)))
    [consumer] = driver.machine.consumers.values()
    assert (len(held_messages(consumer)), counts(driver, "q", "full")) == (2, [1, 0])


def test_a_queue_that_drops_its_head_drops_its_head(driver: Driver) -> None:
    driver.apply(declare("short", x_max_length=2), publish(2, "short"))
    driver.apply(publish(3))
    order = places(driver, "q")
    driver.apply(MOVE._replace(destination="short"), step(0, (0, 3)))
    assert (places(driver, "short"), counts(driver, "q")) == (order[1:], [0])


def test_move_ends_after_its_requested_count(driver: Driver) -> None:
    driver.apply(publish(9))
    driver.apply(MOVE._replace(count=4))
    driver.apply(step(0, (0, 1), (2, 2), then=(PLACE, 4)))
    assert move(driver).state == "running"
    driver.apply(step(1, (4, 5)))
    known = move(driver)
    assert (counts(driver), known.state, known.moved, known.key) == ([5, 4], "finished", 4, 5)


# Dead letters


def die(driver: Driver, name: str, count: int) -> None:
    """Have the first messages of a queue rejected."""
    driver.apply(consume(driver.index + 100, name, count, session=driver.index + 100))
    number = driver.index + 99
    driver.apply(c.Discard(number, 0, count - 1))
    driver.apply(c.SessionDown(number))
    driver.lead()


def history(driver: Driver, name: str) -> History:
    source = queue(driver, name)
    [(_, messages)] = source.peek(PLACE, 0, 2**62, 1)
    found = source.histories.get(messages.history)
    assert found is not None
    return found


def test_dead_letters_move_to_their_first_queue_as_published(driver: Driver) -> None:
    to_dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    driver.apply(declare("one", **to_dead), declare("two", **to_dead), declare("gone", **to_dead))
    to_rest = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "rest"}
    driver.apply(declare("dead", **to_rest), declare("rest"))
    driver.apply(c.BindQueue(1, 1, "one", "amq.direct", "k", {}))
    driver.apply(
        publish(2, "k", exchange="amq.direct", more_keys=["other"]), publish(1, "two"), publish(1, "gone")
    )
    for name, count in (("one", 2), ("two", 1), ("gone", 1), ("dead", 4)):
        die(driver, name, count)
    driver.apply(publish(1, "rest"))
    driver.apply(c.DeleteQueue(1, 1, "gone", False, False))
    assert counts(driver, "rest") == [5]
    driver.apply(MOVE._replace(source="rest", destination=""))
    driver.apply(step(0, (0, 5)))
    assert counts(driver, "rest", "one", "two") == [2, 2, 1], "one did not die, another has no queue any more"
    known = history(driver, "one")
    assert (known.exchange, known.routing_key, known.cc_removed) == ("amq.direct", "k", False)
    assert [(death.queue, death.count) for death in known.deaths] == [("dead", 1), ("one", 1)]
    assert (known.spread, known.over) == (1, 2)
    assert len(queue(driver, "rest").histories) == 1, "those that went have taken theirs along"
    reloaded(driver.machine)


def test_a_move_puts_an_end_to_a_cycle_of_dead_letters(driver: Driver) -> None:
    """Otherwise a message that expires twice and is moved back would be dropped in its next round."""
    driver.apply(
        declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="wait", x_message_ttl=10),
        declare("wait", x_dead_letter_exchange="", x_dead_letter_routing_key="parked", x_message_ttl=10),
        declare("parked"),
    )
    driver.apply(publish(1, "work"))
    for number in range(3):
        driver.wait_until(driver.time_ms + 100)
        assert counts(driver, "work", "wait", "parked") == [0, 0, 1]
        known = history(driver, "parked")
        assert [(death.queue, death.count) for death in known.deaths] == [
            ("wait", number + 1),
            ("work", number + 1),
        ]
        assert known.over == 0
        name = f"m{number}"
        driver.apply(MOVE._replace(source="parked", destination="", move=name))
        driver.apply(step(0, (number, 1), name=name))
        assert history(driver, "work").over == 2
        reloaded(driver.machine)


def test_dead_letter_already_in_its_first_queue_stays(driver: Driver) -> None:
    driver.apply(declare("round", x_dead_letter_exchange="", x_dead_letter_routing_key="round"))
    driver.apply(publish(1, "round"))
    die(driver, "round", 1)
    driver.apply(MOVE._replace(source="round", destination=""), step(0, (0, 9)))
    assert (counts(driver, "round"), move(driver).state) == ([1], "finished")


# Changes of the queues


def test_a_move_fails_when_a_queue_is_not_the_same_any_more(driver: Driver) -> None:
    driver.apply(declare("other"), publish(3), publish(3, "other"))
    driver.apply(MOVE, MOVE._replace(move="n", source="other"))
    driver.apply(c.DeleteQueue(1, 1, "q", False, False), declare("q"), step(0, (0, 3)))
    assert (move(driver).state, move(driver).error) == ("failed", "no queue 'q' in vhost '/'")
    driver.apply(c.DeleteQueue(1, 1, "to", False, False), step(0, (0, 3), name="n"))
    assert (move(driver, "n").state, move(driver, "n").error) == ("failed", "no queue 'to' in vhost '/'")
    assert counts(driver, "other") == [3]


def test_moves_are_deleted_with_their_virtual_host(driver: Driver) -> None:
    driver.apply(MOVE, MOVE._replace(move="n", source="to", destination="q"))
    driver.apply(c.EndMove("/", "n", ""))
    driver.apply(c.DeleteVhost("/"))
    assert (driver.machine.moves.all, driver.machine.moves.running) == ({}, {})
    driver.apply(step(0, (0, 3)), c.EndMove("/", "m", ""), MOVE)
    assert driver.machine.moves.all == {}


def test_stopped_move_keeps_the_moved_messages(driver: Driver) -> None:
    driver.apply(publish(4), MOVE, step(0, (0, 2), then=(PLACE, 2)))
    driver.apply(c.EndMove("/", "m", ""), step(1, (2, 2)))
    assert (counts(driver), move(driver).state, move(driver).error) == ([2, 2], "stopped", "")
    driver.apply(c.EndMove("/", "m", "too late"))
    assert move(driver).state == "stopped"


def test_two_moves_may_exchange_the_messages_of_two_queues(driver: Driver) -> None:
    """Each move covers the messages at its beginning, so both end."""
    driver.apply(publish(2), publish(3, "to"))
    driver.apply(MOVE, MOVE._replace(move="n", source="to", destination="q"))
    driver.apply(step(0, (0, 2)), step(0, (0, 3), name="n"))
    assert (counts(driver), move(driver).state, move(driver, "n").state) == ([3, 2], "finished", "finished")
    assert (move(driver).position_end, move(driver, "n").position_end) == (2, 3)


# Which moves may begin


def refusal(driver: Driver, command: c.BeginMove) -> str:
    """Why a move may not begin; and it does not."""
    before = dict(driver.machine.moves.all)
    driver.apply(command)
    assert driver.machine.moves.all == before
    with pytest.raises(Refused) as refused:
        driver.machine.catalog.check_room(command)
    return refused.value.text


def test_moves_that_cannot_be_are_refused(driver: Driver) -> None:
    exclusive = declare("mine")._replace(exclusive=True)
    driver.apply(exclusive)
    assert refusal(driver, MOVE._replace(source="none")) == "no queue 'none' in vhost '/'"
    assert refusal(driver, MOVE._replace(destination="none")) == "no queue 'none' in vhost '/'"
    assert "exclusive access to locked queue 'mine'" in refusal(driver, MOVE._replace(source="mine"))
    assert "exclusive access to locked queue 'mine'" in refusal(driver, MOVE._replace(destination="mine"))
    assert refusal(driver, MOVE._replace(destination="q")) == (
        "messages of queue 'q' in vhost '/' cannot be moved to where they are"
    )
    large = {"h": "x" * FILTER_BYTES_MAX}
    assert f"take {table_bytes(large)} bytes" in refusal(driver, MOVE._replace(headers=large))
    driver.apply(MOVE)
    assert refusal(driver, MOVE._replace(move="n", destination="")) == (
        "messages of queue 'q' in vhost '/' are being moved already (move 'm')"
    )
    driver.apply(MOVE._replace(count=7))
    assert move(driver).count == 0
    driver.apply(c.EndMove("/", "m", ""), MOVE._replace(move="n"))
    assert move(driver, "n").state == "running"


def test_running_and_remembered_moves_are_limited(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(vhost: str, numbers: Sequence[int]) -> None:
        driver.apply(*(declare(f"q{number}", session=session[vhost]) for number in numbers))
        named = [MOVE._replace(vhost=vhost, move=f"m{n}", source=f"q{n}", destination="") for n in numbers]
        driver.apply(*named)

    driver.apply(
        c.PutVhost("v", "", [], ""), c.PutUser("u", b"", b"", []), c.SetPermissions("u", "v", "", "", "")
    )
    driver.apply(c.Connect(7, "v", "u"), c.OpenChannel(8, 7))
    session = {"/": 1, "v": 8}
    begin("/", range(RUNNING_IN_VHOST_MAX + 1))
    assert len(driver.machine.moves.running) == RUNNING_IN_VHOST_MAX
    text = refusal(driver, MOVE)
    assert text == "10 moves are under way in vhost '/', which is the limit: wait for one, or stop one"
    monkeypatch.setattr("qq.machine.queue.moves.RUNNING_MAX", RUNNING_IN_VHOST_MAX + 2)
    begin("v", range(3))
    assert len(driver.machine.moves.running) == RUNNING_IN_VHOST_MAX + 2 < RUNNING_MAX
    assert "in the cluster" in refusal(
        driver, MOVE._replace(vhost="v", move="m2", source="q2", destination="")
    )

    monkeypatch.setattr("qq.machine.queue.moves.ENDED_MAX", ENDED_IN_VHOST_MAX + 1)
    driver.apply(c.EndMove("v", "m1", ""))
    for number in range(ENDED_IN_VHOST_MAX + 2):
        driver.time_ms += 1
        driver.apply(c.EndMove("/", f"m{number}", ""))
        driver.apply(MOVE._replace(move=f"m{number + 10}", source=f"q{number % 10}", destination=""))
    remembered = [other for other in driver.machine.moves.all.values() if not other.is_running]
    assert len(remembered) == ENDED_IN_VHOST_MAX + 1
    assert [key in driver.machine.moves.all for key in (("v", "m1"), ("/", "m1"))] == [True, False]
    driver.time_ms += 1
    driver.apply(c.EndMove("v", "m0", ""))
    assert ("v", "m1") not in driver.machine.moves.all, "the one that ended first"
    reloaded(driver.machine)


def test_move_commands_are_refused_before_version_8() -> None:
    for command in (MOVE, step(0, (0, 1)), c.EndMove("/", "m", "")):
        check_command(command, 8)
        with pytest.raises(InvalidCommand, match="from version 8"):
            check_command(command, 7)


@pytest.mark.parametrize("numbers", [[-1], ["1"], [1.5], [True], [None], [2**64]])
def test_pieces_are_numbers(numbers: list[object]) -> None:
    with pytest.raises(InvalidCommand):
        check_command(step(0)._replace(pieces=numbers), 8)  # type: ignore[arg-type]


def test_incomplete_piece_of_a_move_step_is_ignored(driver: Driver) -> None:
    driver.apply(publish(3), MOVE)
    driver.apply(step(0, (0, 1))._replace(pieces=[*MovePiece(0, 1, 0, NO_PRIORITY, NO_TTL), 1, 2]))
    assert counts(driver) == [2, 1]


def test_cost_of_a_move_step_is_that_of_its_pieces(driver: Driver) -> None:
    """However many messages have come back among those that it is about since the leader looked."""
    driver.apply(*(publish(1, priority=1) for _ in range(300)))
    driver.apply(MOVE)
    one, many = step(0, (0, 1)), step(0, *((at, 1) for at in range(250)))
    assert driver.machine.costs.steps("n1", one) < driver.machine.costs.steps("n1", many) < 5_000


def test_move_step_above_the_limit_continues_in_the_next(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qq.machine.handlers.moving.MOVED_AT_ONCE", 4)
    driver.apply(publish(9), MOVE)
    driver.apply(step(0, (0, 1), (8, 1)))
    known = move(driver)
    assert (known.state, known.key, known.moved) == ("running", 4, 1)
    driver.apply(step(1, (4, 2), (8, 1)), step(2, (8, 1)))
    assert (known.state, known.moved, counts(driver)) == ("finished", 4, [5, 4])


# Shovels

SHOVEL = c.PutParameter("/", "shovel", "s", "{}")
FOR_SHOVEL = MOVE._replace(user="", shovel="s")


def shovels(driver: Driver) -> list[str]:
    return [name for component, name in driver.machine.vhosts["/"].parameters if component == "shovel"]


def test_a_move_for_a_shovel_needs_the_shovel(driver: Driver) -> None:
    assert refusal(driver, FOR_SHOVEL) == "no shovel 's' in vhost '/'"
    driver.apply(SHOVEL, FOR_SHOVEL)
    assert driver.machine.moves.running_for_shovel("/", "s") is move(driver)


def test_finished_shovel_is_deleted_in_the_last_step_of_its_move(driver: Driver) -> None:
    driver.apply(publish(3), SHOVEL, SHOVEL._replace(name="other"), FOR_SHOVEL)
    driver.apply(step(0, (0, 2), then=(PLACE, 2)))
    assert shovels(driver) == ["s", "other"]
    driver.apply(step(1, (2, 1)))
    assert (shovels(driver), move(driver).state) == (["other"], "finished")
    assert reloaded(driver.machine).vhosts["/"].parameters.keys() == {("shovel", "other")}


@pytest.mark.parametrize("change", [SHOVEL, c.DeleteParameter("/", "shovel", "s")])
def test_changed_or_deleted_shovel_stops_its_move(driver: Driver, change: c.Command) -> None:
    driver.apply(declare("more"), SHOVEL, FOR_SHOVEL, MOVE._replace(move="n", source="more"))
    driver.apply(change)
    assert (move(driver).state, move(driver, "n").state) == ("stopped", "running")


def test_endless_move_takes_new_messages_and_ends_with_its_count(driver: Driver) -> None:
    driver.apply(publish(1), SHOVEL, FOR_SHOVEL._replace(is_endless=True, count=3))
    driver.apply(publish(1), step(0, (0, 2)))
    assert (counts(driver), move(driver).state) == ([0, 2], "running")
    driver.apply(publish(2), step(1, (2, 2)))
    assert (counts(driver), move(driver).state, shovels(driver)) == ([1, 3], "finished", [])


def test_moves_of_shovels_do_not_count_towards_the_move_limit(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qq.machine.queue.moves.RUNNING_IN_VHOST_MAX", 1)
    driver.apply(declare("more"), declare("third"), SHOVEL, SHOVEL._replace(name="t"), FOR_SHOVEL)
    driver.apply(MOVE._replace(move="n", source="more"))
    assert len(driver.machine.moves.running) == 2
    assert "are being moved already" in refusal(driver, MOVE._replace(move="o"))
    assert "1 moves are under way" in refusal(
        driver, FOR_SHOVEL._replace(move="p", source="third", shovel="t")
    )
