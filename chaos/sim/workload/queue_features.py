"""Draws the settings of a run's queues and the properties of its messages from the seed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pamqp.frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from qq.machine.protocol.commands import DEFAULT_VHOST, BeginMove, DeletePolicy, Enqueue, Publish, PutPolicy
from qq.stored.editing import with_headers
from qq.stored.layout import flags
from qq.stored.properties import group

if TYPE_CHECKING:
    from qq.machine.protocol.commands import Table

CHANNEL = 1
"""The AMQP channel number in stored frames."""
QUEUES = ("q1", "q2", "q3")
TO_ALL = "all"
"""A fanout exchange to all queues."""
POLICIES = ("p1", "p2", "limits")
OPERATORS_POLICY = "limits"
PLAIN_RUNS = 0.2
"""Share of the runs without queue settings and message properties, which take the fast paths."""
TTL_MAX_MS = 3_000


def draw_queues(random: Random) -> dict[str, Table]:
    """Draw the arguments of each queue."""
    is_plain = random.random() < PLAIN_RUNS
    return {queue: {} if is_plain else _draw_arguments(random, queue) for queue in QUEUES}


def one_of_each(arguments: dict[str, Table]) -> None:
    """Route dead letters to a single queue, so that no message is ever in two queues."""
    for queue, table in arguments.items():
        if table.get("x-dead-letter-exchange") == TO_ALL:
            other = next(other for other in QUEUES if other != queue)
            table |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}


def draw_move(random: Random, name: str, user: str) -> BeginMove:
    """Draw a move between two queues, or back to the queues where messages died first; many are refused."""
    source, destination = random.sample((*QUEUES, ""), 2)
    return BeginMove(
        vhost=DEFAULT_VHOST,
        move=name,
        user=user,
        source=source or QUEUES[0],
        destination=destination,
        count=random.choice((0, 0, 0, 1, 7)),
        rate=random.choice((0, 0, 30)),
        reason=random.choice(("", "", "", "expired")),
        from_queue="",
        headers={},
        shovel="",
        is_endless=False,
    )


def _draw_arguments(random: Random, queue: str) -> Table:
    is_quorum = random.random() < 0.75
    arguments: Table = {"x-queue-type": "quorum" if is_quorum else "classic"}
    if random.random() < 0.3:
        arguments["x-message-ttl"] = random.choice((0, 100, 1_000, TTL_MAX_MS))
    if random.random() < 0.3:
        arguments["x-max-length"] = random.choice((1, 3, 10, 40))
    if random.random() < 0.1:
        arguments["x-max-length-bytes"] = random.choice((200, 5_000))
    if random.random() < 0.5:
        arguments["x-overflow"] = random.choice(("drop-head", "reject-publish"))
    if random.random() < 0.6:
        arguments |= _draw_dead_letters(random, queue)
        if is_quorum and random.random() < 0.5:
            arguments["x-overflow"] = "reject-publish"
            arguments["x-dead-letter-strategy"] = "at-least-once"
    if random.random() < 0.2:
        arguments["x-single-active-consumer"] = True
    if random.random() < 0.2:
        arguments["x-consumer-timeout"] = random.choice((200, 1_000))
        arguments["x-consumer-timeout-action"] = random.choice(("close-channel", "cancel-consumer"))
    if random.random() < 0.2:
        arguments["x-return-position"] = "original"
    if random.random() < 0.07:
        arguments["x-expires"] = 2_000
    arguments |= _draw_of_quorum(random) if is_quorum else _draw_of_classic(random)
    return arguments


def _draw_dead_letters(random: Random, queue: str) -> Table:
    """Draw a dead-letter exchange: usually to a different queue, else to all queues or by the message's keys."""
    choice = random.random()
    if choice < 0.7:
        target = random.choice([other for other in QUEUES if other != queue])
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
    return {"x-dead-letter-exchange": TO_ALL if choice < 0.9 else ""}


def _draw_of_quorum(random: Random) -> Table:
    arguments: Table = {}
    if random.random() < 0.4:
        arguments["x-delivery-limit"] = random.choice((-1, 0, 1, 3))
    if random.random() < 0.3:
        arguments["x-delayed-retry-type"] = random.choice(("all", "failed", "returned"))
        arguments["x-delayed-retry-min"] = random.choice((50, 500))
        arguments["x-delayed-retry-max"] = random.choice((500, 1_500))
    if random.random() < 0.3:
        arguments["x-priority-mode"] = random.choice(("ratio", "strict"))
    if random.random() < 0.2:
        arguments["x-delivery-count-mode"] = "4.3"
    return arguments


def _draw_of_classic(random: Random) -> Table:
    return {"x-max-priority": random.choice((1, 9))} if random.random() < 0.4 else {}


def draw_policy(random: Random) -> PutPolicy | DeletePolicy:
    """Draw a new policy or the removal of a policy. Settings that do not fit a queue are ignored."""
    name = random.choice(POLICIES)
    is_operators = name == OPERATORS_POLICY
    if random.random() < 0.4:
        return DeletePolicy(DEFAULT_VHOST, name, is_operators)
    definition: Table = {}
    if random.random() < 0.5:
        definition["max-length"] = random.choice((2, 10, 40))
    if random.random() < 0.4:
        definition["message-ttl"] = random.choice((100, 1_000, TTL_MAX_MS))
    if random.random() < 0.4:
        definition["delivery-limit"] = random.choice((-1, 1, 3))
    if random.random() < 0.4:
        definition["overflow"] = random.choice(("drop-head", "reject-publish"))
    if not is_operators:
        definition |= _draw_settings_of_policy(random)
    pattern = random.choice(("", "^q[12]$", "3"))
    return PutPolicy(DEFAULT_VHOST, name, is_operators, pattern, "queues", random.randint(0, 2), definition)


def _draw_settings_of_policy(random: Random) -> Table:
    definition: Table = {}
    if random.random() < 0.3:
        definition |= {"dead-letter-exchange": "", "dead-letter-routing-key": random.choice(QUEUES)}
        definition["dead-letter-strategy"] = random.choice(("at-most-once", "at-least-once"))
    if random.random() < 0.2:
        definition["consumer-timeout"] = random.choice((0, 500, 1_000))
    if random.random() < 0.3:
        definition |= {"delayed-retry-type": random.choice(("all", "disabled")), "delayed-retry-min": 300}
    if random.random() < 0.2:
        definition["priority-mode"] = random.choice(("ratio", "strict"))
    return definition


def draw_headers(random: Random, queue: str, *, to_one: bool) -> dict[str, Any]:
    """Draw the headers of a message for a queue: usually none; with `to_one`, no further target queues."""
    headers: dict[str, Any] = {}
    if random.random() < 0.15:
        headers["x-delay"] = random.choice((1, 300, 1_500))
    if random.random() < 0.15 and not to_one:
        headers[random.choice(("CC", "BCC"))] = [random.choice([other for other in QUEUES if other != queue])]
    return headers


def draw_properties(random: Random) -> tuple[int | None, int | None]:
    """Draw the priority and the expiration (ms) of a message; None means without it."""
    priority = random.choice((0, 4, 5, 9, 255)) if random.random() < 0.4 else None
    expiration_ms = random.choice((0, 50, 500, TTL_MAX_MS)) if random.random() < 0.25 else None
    return priority, expiration_ms


def stored_message(
    body: bytes,
    priority: int | None = None,
    expiration_ms: int | None = None,
    headers: dict[str, Any] | None = None,
) -> bytes:
    """Return a message as a publisher sends it: content header and body."""
    expiration = None if expiration_ms is None else str(expiration_ms)
    properties = Basic.Properties(priority=priority, expiration=expiration)
    frames = (ContentHeader(0, len(body), properties), ContentBody(body))
    message = b"".join(pamqp.frame.marshal(frame, CHANNEL) for frame in frames)
    return with_headers([message], additions=headers)[0] if headers else message


def with_sequence(message: bytes, publisher: str, sequence: int) -> bytes:
    """Return the message with a publisher id and a sequence number, so that a repetition is enqueued only once."""
    [stamped] = with_headers([message], additions={"x-publisher-id": publisher, "x-publish-seq": sequence})
    return stamped


def publishes(
    session: int, first_seq: int, exchange: str, key: str, messages: list[bytes]
) -> list[Enqueue | Publish]:
    """Return the publishing commands for messages, as the broker builds them.

    Replaces `messages` in place by their stored form. `first_seq` is the number of the first message on its channel, or
    0 in a transaction.
    """
    commands: list[Enqueue | Publish] = []
    stored: list[bytes] = []
    for attributes, alike in group(messages, flags(messages[0])):
        number = first_seq and first_seq + len(stored)
        place = (session, number, len(alike), exchange, key, False, CHANNEL)
        stored += alike
        if attributes is None:
            commands.append(Enqueue(*place))
        else:
            more_keys, priority, ttl_ms, delay_ms, publisher, sequence = attributes
            commands.append(Publish(*place, list(more_keys), priority, ttl_ms, delay_ms, publisher, sequence))
    messages[:] = stored
    return commands
