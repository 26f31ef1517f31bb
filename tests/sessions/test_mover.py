"""The leader's part of moves: which messages they are for, how fast they go, and whether they still may."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import pika
import pytest

from qq.machine.protocol import commands as c
from qq.machine.queue.moves import MoveState
from qq.sessions import message_filter, mover
from qq.sessions.entries import MessagesGone
from tests.harness.lone_broker import LoneBroker, wait_until

QUORUM = {"x-queue-type": "quorum"}
MOVE = c.BeginMove("/", "m", "guest", "q", "to", 0, 0, "", "", {}, "", False)


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as lone:
        lone.call(lone.machine.raise_to, 8)
        lone.call(lone.broker.leader_changed, "n1", 1)
        yield lone


@pytest.fixture
def channel(broker: LoneBroker) -> Generator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    for name in ("q", "to"):
        channel.queue_declare(name, durable=True, arguments=QUORUM)
    yield channel
    if connection.is_open:
        connection.close()


def publish(channel: Any, *bodies: bytes, queue: str = "q", **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def drained(channel: Any, queue: str) -> list[tuple[Any, Any, bytes]]:
    found: list[tuple[Any, Any, bytes]] = []
    while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(message)
    return found


def bodies(channel: Any, queue: str) -> list[bytes]:
    return [body for _, _, body in drained(channel, queue)]


def moved(broker: LoneBroker, command: c.BeginMove | c.BeginTextMove) -> MoveState:
    """Have messages moved, and wait for the end."""
    broker.operate(command)
    move = broker.machine.moves.all[command.vhost, command.move]
    wait_until(lambda: not move.is_running, "the end of the move")
    return move


def test_all_messages_are_moved_unchanged(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", headers={"h": 1}, priority=7, content_type="a/b")
    publish(channel, *(b"%d" % number for number in range(600)))
    move = moved(broker, MOVE)
    assert (move.state, move.moved, move.examined, move.ready) == ("finished", 601, 601, 601)
    messages = drained(channel, "to")
    assert [body for _, _, body in messages] == [b"a", *(b"%d" % number for number in range(600))]
    method, properties, _ = messages[0]
    assert (method.exchange, method.routing_key, method.redelivered) == ("", "q", False)
    assert (properties.headers, properties.priority, properties.content_type) == ({"h": 1}, 7, "a/b")
    assert bodies(channel, "q") == []


def test_only_messages_with_the_headers_are_moved(broker: LoneBroker, channel: Any) -> None:
    wanted = {"text": "é", "number": 1, "flag": True}
    other_definitions: list[dict[str, Any]] = [
        wanted | {"number": True},
        wanted | {"flag": 1},
        wanted | {"text": "e"},
        {"text": "é", "number": 1},
        {},
    ]
    for number in range(3):
        publish(channel, b"yes%d" % number, headers=wanted | {"more": None})
        for other in other_definitions:
            publish(channel, b"no%d" % number, headers=other)
    publish(channel, b"plain")
    move = moved(broker, MOVE._replace(headers=wanted, count=2))
    assert (move.moved, bodies(channel, "to")) == (2, [b"yes0", b"yes1"])
    moved(broker, MOVE._replace(headers=wanted, move="n"))
    assert bodies(channel, "to") == [b"yes2"]
    assert bodies(channel, "q") == [body for n in range(3) for body in [b"no%d" % n] * 5] + [b"plain"]


def test_only_messages_with_the_text_are_moved(broker: LoneBroker, channel: Any) -> None:
    broker.call(broker.machine.raise_to, 11)
    order = b'{"order": 36, "name": "Z\xc3\xbcrich"}'
    publish(channel, order, b'{"order": 37}', b"\xff\xfeorder")
    publish(channel, b"in a property", message_id='order": 36,')
    publish(channel, b"in a header", headers={"deep": [{"a": 'x order": 36, y'}], "n": 36})
    publish(channel, b"x" * 3_000_000 + b'order": 36,')  # behind the part of a body that is searched
    publish(channel, b'order": 36,' + b"x" * 3_000_000)
    found = {'order": 36,': 4, "züRICH": 1, "deep": 1, "36": 4, "nothing of it": 0, "\ufffd\ufffdorder": 1}
    for number, (text, count) in enumerate(found.items()):
        begin = c.BeginTextMove("/", f"m{number}", "guest", "q", "to", 0, 0, "", "", {}, text)
        move = moved(broker, begin)
        assert (move.state, move.examined, move.moved) == ("finished", 7, count), text
        back = moved(broker, MOVE._replace(source="to", destination="q", move=f"b{number}"))
        assert back.moved == count
    both = c.BeginTextMove("/", "both", "guest", "q", "to", 0, 0, "", "", {"n": 36}, "ORDER")
    assert moved(broker, both).moved == 1
    assert bodies(channel, "to") == [b"in a header"]


def test_text_is_sought_in_a_bounded_part_of_a_message(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.call(broker.machine.raise_to, 11)
    publish(channel, b"x" * 2**20 + b"behind" + b"y" * 8_000_000)
    publish(channel, b"x" * (2**20 - 6) + b"inside" + b"y" * 8_000_000)
    messages, sizes = broker.broker.entries.messages, list[int]()

    def measured(part: Any, **limits: Any) -> Any:
        found = messages(part, **limits)
        sizes.extend(len(message) for group in found or () for message in group.messages)
        return found

    monkeypatch.setattr(broker.broker.entries, "messages", measured)
    decoded: list[int] = []
    take_apart = message_filter.content

    def counted(*arguments: Any) -> Any:
        found = take_apart(*arguments)
        decoded.append(len(found.body))
        return found

    monkeypatch.setattr(message_filter, "content", counted)
    for text, count in (("behind", 0), ("inside", 1)):
        assert (
            moved(broker, c.BeginTextMove("/", text, "guest", "q", "to", 0, 0, "", "", {}, text)).moved
            == count
        )
    assert len(decoded) == 4
    assert 2**20 <= min(decoded) <= max(decoded) < 1.1 * 2**20
    assert max(sizes) < 2.5 * 2**20  # a fragment has a MiB at most


def test_dead_letters_are_moved_back_by_reason_and_queue(broker: LoneBroker, channel: Any) -> None:
    dead = QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    channel.exchange_declare("e", "fanout")
    for name in ("one", "two"):
        channel.queue_declare(name, durable=True, arguments=dead | {"x-message-ttl": 3_600_000})
    channel.queue_bind("one", "e")
    channel.basic_publish("e", "key", b"rejected in one")
    publish(channel, b"rejected in two", queue="two")
    for name in ("one", "two"):
        channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
    channel.queue_declare("limited", durable=True, arguments=dead | {"x-max-length": 1})
    publish(channel, b"over the limit", b"stays", queue="limited")
    publish(channel, b"alive")
    wait_until(lambda: broker.machine.vhosts["/"].queues["q"].ready == 4, "all dead letters")
    assert moved(broker, MOVE._replace(reason="maxlen", move="1")).moved == 1
    assert bodies(channel, "to") == [b"over the limit"]
    assert moved(broker, MOVE._replace(from_queue="two", reason="expired", move="2")).moved == 0
    assert moved(broker, MOVE._replace(from_queue="two", reason="rejected", move="3")).moved == 1
    [(_, properties, body)] = drained(channel, "to")
    assert (body, properties.headers["x-death"][0]["queue"]) == (b"rejected in two", "two")
    back = moved(broker, MOVE._replace(destination="", move="4"))
    assert (back.moved, back.examined) == (1, 2)
    [(method, properties, body)] = drained(channel, "one")
    assert (body, method.exchange, method.routing_key) == (b"rejected in one", "e", "key")
    assert properties.headers["x-first-death-queue"] == "one"
    assert bodies(channel, "q") == [b"alive"]


def dead_of(channel: Any, broker: LoneBroker, *origins: str) -> None:
    """Reject a message of each of these queues into q, in this order; its body is its number."""
    for name in dict.fromkeys(origins):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
        limited = {"x-max-length": 1, "x-overflow": "reject-publish"} if name.startswith("full") else {}
        channel.queue_declare(name, durable=True, arguments=QUORUM | arguments | limited)
    queue = broker.machine.vhosts["/"].queues["q"]
    for number, name in enumerate(origins):
        publish(channel, b"%d" % number, queue=name)
        channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
        wait_until(lambda number=number: queue.ready == number + 1, "a dead letter")


def test_full_origin_holds_up_only_its_own_dead_letters(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "RETRY_S", 0.02)
    dead_of(channel, broker, "full 1", "one", "full 1", "two", "full 2", "full 2", "one", "full 1")
    broker.operate(MOVE._replace(destination=""))
    move = broker.machine.moves.all["/", "m"]
    wait_until(lambda: move.moved == 5, "all messages that have room")
    assert [bodies(channel, name) for name in ("one", "two")] == [[b"1", b"6"], [b"3"]]
    wait_until(lambda: move.waits_for == "full 1", "the first full queue")
    found = bodies(channel, "full 2")  # the next message may come while this is read
    wait_until(lambda: move.moved == 6, "the next message of this queue")
    assert found + bodies(channel, "full 2") == [b"4", b"5"]
    taken: list[bytes] = []
    while len(taken) < 3:
        taken += bodies(channel, "full 1")
    wait_until(lambda: not move.is_running, "the end of the move")
    assert taken == [b"0", b"2", b"7"]
    assert (move.state, move.moved, bodies(channel, "q")) == ("finished", 8, [])


def test_new_leader_moves_messages_that_were_passed_over(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "RETRY_S", 0.02)
    monkeypatch.setattr(mover, "STEP_MESSAGES", 1)
    dead_of(channel, broker, "full", "full", *["one"] * 20)
    broker.operate(MOVE._replace(destination="", rate=20))
    move = broker.machine.moves.all["/", "m"]
    wait_until(lambda: move.moved >= 4, "messages behind the one that was passed over")
    broker.call(broker.broker.leader_changed, "n2", 2)
    broker.pass_some_time()
    assert bodies(channel, "full") == [b"0"]
    broker.call(broker.broker.leader_changed, "n1", 3)
    wait_until(lambda: not move.is_running, "the end of the move")
    assert (bodies(channel, "full"), bodies(channel, "q")) == ([b"1"], [])


def test_time_to_live_restarts_in_the_destination(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", expiration="3000000")
    publish(channel, b"b")
    moved(broker, MOVE)
    found = broker.machine.vhosts["/"].queues["to"].peek(28, 0, 9, 9)
    assert [messages.expires_ms for _, messages in found] == [3_000_000, 0]


def test_a_rate_is_kept_and_a_move_can_be_stopped(broker: LoneBroker, channel: Any) -> None:
    publish(channel, *(b"%d" % number for number in range(100)))
    began_s = time.monotonic()
    broker.operate(MOVE._replace(rate=50))
    move = broker.machine.moves.all["/", "m"]
    wait_until(lambda: move.moved >= 20, "some messages")
    took_s = time.monotonic() - began_s
    assert 20 <= move.moved <= 1 + 50 * (took_s + 2 * mover.TICK_S)
    assert took_s >= 0.2
    broker.operate(c.EndMove("/", "m", ""))
    assert move.state == "stopped"
    broker.pass_some_time()
    assert len(bodies(channel, "to")) == move.moved
    assert len(bodies(channel, "q")) == 100 - move.moved


def test_move_continues_as_soon_as_there_is_room(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "RETRY_S", 0.02)
    arguments = QUORUM | {"x-max-length": 3, "x-overflow": "reject-publish"}
    channel.queue_declare("full", durable=True, arguments=arguments)
    publish(channel, *(b"%d" % number for number in range(10)))
    broker.operate(
        MOVE._replace(destination="full"), MOVE._replace(move="n", source="full", destination="to")
    )
    other = broker.machine.moves.all["/", "n"]
    wait_until(lambda: not other.is_running, "the move of nothing, or of a few")
    move = broker.machine.moves.all["/", "m"]
    wait_until(lambda: move.waits_for == "full", "the limit")
    found = bodies(channel, "to")
    while move.is_running or not found or found[-1] != b"9":
        found += bodies(channel, "full")
    assert found == [b"%d" % number for number in range(10)]
    assert (move.state, move.moved, move.waits_for) == ("finished", 10, "")


@pytest.mark.parametrize(
    ("patterns", "error"),
    [
        (("", "", "q"), "write access to queue 'to' in vhost '/' refused for user 'eve'"),
        (("", "to", ""), "read access to queue 'q' in vhost '/' refused for user 'eve'"),
    ],
)
def test_move_fails_when_its_user_loses_permission(
    broker: LoneBroker, channel: Any, patterns: tuple[str, str, str], error: str
) -> None:
    broker.add_user("eve", None)
    publish(channel, *(b"%d" % number for number in range(50)))
    broker.operate(MOVE._replace(user="eve", rate=20))
    move = broker.machine.moves.all["/", "m"]
    wait_until(lambda: move.moved > 0, "a message")
    broker.learn(c.SetPermissions("eve", "/", *patterns))
    wait_until(lambda: not move.is_running, "the end of the move")
    assert (move.state, move.error) == ("failed", error)
    assert len(bodies(channel, "to")) == move.moved
    assert len(bodies(channel, "q")) == 50 - move.moved


def test_dead_letters_stay_without_write_permission(broker: LoneBroker, channel: Any) -> None:
    broker.add_user("eve", None)
    broker.operate(c.SetPermissions("eve", "/", "", "^mine$", ".*"))
    for name in ("mine", "theirs"):
        dead = QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-max-length": 1}
        channel.queue_declare(name, durable=True, arguments=dead)
        publish(channel, b"dies in " + name.encode(), b"stays", queue=name)
    wait_until(lambda: broker.machine.vhosts["/"].queues["q"].ready == 2, "all dead letters")
    channel.queue_purge("mine")
    move = moved(broker, MOVE._replace(user="eve", destination=""))
    assert (move.state, move.moved) == ("finished", 1)
    assert bodies(channel, "mine") == [b"dies in mine"]
    assert bodies(channel, "q") == [b"dies in theirs"]


def test_moves_wait_during_an_alarm(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "RETRY_S", 0.02)
    publish(channel, b"a")
    broker.alarm("the disk is full")
    broker.operate(MOVE)
    time.sleep(0.1)
    move = broker.machine.moves.all["/", "m"]
    assert (move.state, move.step) == ("running", 0)
    broker.alarm(None)
    wait_until(lambda: not move.is_running, "the end of the move")
    assert bodies(channel, "to") == [b"a"]


def test_moves_go_on_side_by_side(broker: LoneBroker, channel: Any) -> None:
    for number in range(3):
        for name in (f"from{number}", f"to{number}"):
            channel.queue_declare(name, durable=True, arguments=QUORUM)
        publish(channel, *[b"x"] * 30, queue=f"from{number}")
    moves = [
        MOVE._replace(move=str(n), source=f"from{n}", destination=f"to{n}", rate=rate)
        for n, rate in enumerate((0, 200, 200))
    ]
    broker.operate(*moves)
    running = broker.machine.moves.running
    wait_until(lambda: not running, "all moves")
    assert [move.moved for move in broker.machine.moves.all.values()] == [30] * 3


def test_new_leader_continues_a_move_where_it_was(broker: LoneBroker, channel: Any) -> None:
    publish(channel, *(b"%d" % number for number in range(40)))
    broker.operate(MOVE._replace(rate=50))
    move = broker.machine.moves.all["/", "m"]
    wait_until(lambda: move.moved > 0, "a message")
    broker.call(broker.broker.leader_changed, "n2", 2)
    broker.pass_some_time()
    moved_before = move.moved
    time.sleep(0.3)
    assert move.moved == moved_before, "it is another node's affair now"
    broker.call(broker.broker.leader_changed, "n1", 3)
    wait_until(lambda: not move.is_running, "the end of the move")
    assert bodies(channel, "to") == [b"%d" % number for number in range(40)]


def test_a_step_that_is_lost_is_taken_again(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "RETRY_S", 0.02)
    publish(channel, b"a", b"b")
    channel.connection.close()
    broker.operate(MOVE._replace(rate=20))
    move = broker.machine.moves.all["/", "m"]
    broker.call(setattr, broker.group, "holding", True)
    wait_until(lambda: bool(broker.group._held), "a step")
    broker.call(broker.evict)
    wait_until(lambda: not move.is_running, "the end of the move")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    assert bodies(connection.channel(), "to") == [b"a", b"b"]
    connection.close()


def test_unreadable_message_stays_and_is_logged(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(channel, b"a", b"b")
    missing = broker.group.last_index
    messages = broker.broker.entries.messages

    def some(part: Any, *, frames_max: int) -> Any:
        assert frames_max == 0  # a move does not depend on bodies, which may be large
        if part.index == missing:
            raise MessagesGone("it is gone")
        return messages(part, frames_max=frames_max)

    monkeypatch.setattr(broker.broker.entries, "messages", some)
    move = moved(broker, MOVE)
    monkeypatch.undo()
    assert (move.moved, move.examined) == (1, 2)
    assert bodies(channel, "to") == [b"a"]
    assert bodies(channel, "q") == [b"b"]
    assert f"messages of entry {missing} cannot be read" in caplog.text


def test_messages_that_are_not_in_memory_are_read(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(channel, *(b"%d" % number for number in range(20)))
    kept = dict(broker.group.entries)
    reads: list[list[int]] = []

    def read_job(indexes: list[int], _bytes_max: int) -> Any:
        reads.append(list(indexes))
        return lambda: [kept[index] for index in indexes]

    monkeypatch.setattr(broker.group, "read_job", read_job)
    broker.lose_messages()
    assert moved(broker, MOVE).moved == 20
    assert 1 <= len(reads) < 20
    broker.call(broker.group.entries.update, kept)
    assert bodies(channel, "to") == [b"%d" % number for number in range(20)]


def test_step_examines_few_octets(broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "STEP_BYTES", 1_000)
    publish(channel, *[b"x" * 700] * 5)
    steps: list[Any] = []
    add = broker.broker.submissions.add

    def record(command: Any, lane: Any = None) -> None:
        steps.append(command)
        add(command, lane)

    monkeypatch.setattr(broker.broker.submissions, "add", record)
    assert moved(broker, MOVE).moved == 5
    examined = [command.examined for command in steps if isinstance(command, c.MoveMessages)]
    assert max(examined) <= 2


# Shovels

VALUE = '{"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "to"}'


def test_shovel_moves_new_messages_until_it_is_deleted(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a")
    broker.operate(c.PutParameter("/", "shovel", "s", VALUE))
    moves = broker.machine.moves
    wait_until(lambda: bool(moves.running), "a move")
    publish(channel, b"b", b"c")
    to = broker.machine.vhosts["/"].queues["to"]
    wait_until(lambda: to.ready == 3, "all messages")
    steps = next(iter(moves.running.values())).step
    time.sleep(3 * mover.TICK_S)
    assert next(iter(moves.running.values())).step == steps, "nothing is said of nothing"
    broker.operate(c.DeleteParameter("/", "shovel", "s"))
    publish(channel, b"d")
    time.sleep(2 * mover.TICK_S)
    assert bodies(channel, "q") == [b"d"]
    assert bodies(channel, "to") == [b"a", b"b", b"c"]


def test_shovel_moves_messages_returned_to_its_source(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", b"b")
    held = channel.basic_get("q")[0].delivery_tag
    broker.operate(c.PutParameter("/", "shovel", "s", VALUE))
    to = broker.machine.vhosts["/"].queues["to"]
    wait_until(lambda: to.ready == 1, "what was ready")
    channel.basic_nack(held)
    wait_until(lambda: to.ready == 2, "what came back")
    assert bodies(channel, "to") == [b"b", b"a"]


@pytest.mark.parametrize(("after", "left"), [('"queue-length"', 0), ("2", 1)])
def test_finished_shovel_deletes_its_parameter(
    broker: LoneBroker, channel: Any, after: str, left: int
) -> None:
    publish(channel, b"a", b"b", b"c")
    value = VALUE.replace("}", f', "src-delete-after": {after}}}')
    broker.operate(c.PutParameter("/", "shovel", "s", value))
    wait_until(lambda: not broker.machine.vhosts["/"].parameters, "the end of the shovel")
    assert (len(bodies(channel, "to")), len(bodies(channel, "q"))) == (3 - left, left)


def test_shovel_restarts_when_its_queues_exist_again(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qq.sessions.shovels.POLL_S", 0.02)
    broker.operate(c.PutParameter("/", "shovel", "s", VALUE), c.PutParameter("/", "shovel", "strange", "[]"))
    moves = broker.machine.moves
    wait_until(lambda: bool(moves.running), "a move")
    channel.queue_delete("to")
    wait_until(lambda: not moves.running, "the end of the move")
    publish(channel, b"a")
    channel.queue_declare("to", durable=True, arguments=QUORUM)
    wait_until(lambda: bool(moves.running), "another move")
    to = broker.machine.vhosts["/"].queues["to"]
    wait_until(lambda: to.ready == 1, "the message")
    assert [move.state for move in moves.all.values()] == ["failed", "running"]
